#include "actors/common/engine_user.h"

#include <algorithm>

#include "actors/common/tenant_key.h"

namespace primerl {

Status EngineUser::start(Resources& resources) {
  engine_ = &resources.get<Engine>("engine");
  weights_ = resources.get_if<WeightChannel>("weights");
  if (weights_ != nullptr) RETURN_IF_ERROR(weights_->expect(engine_->manifest()));
  if (!services().tenants().empty()) load_tenant_ = services().tenants().front();
  return ok();
}

/// Drops updates whose weights have not arrived: they are not applied any more.
Status EngineUser::drain() {
  coming_.clear();
  return ok();
}

Status EngineUser::on_peer(const PeerEvent& event) {
  if (event.kind != PeerEvent::Kind::kUp) return ok();
  sent_load_.reset();
  send_load(engine_->state());
  return ok();
}

Status EngineUser::on_update(const PolicyUpdate& update) {
  CHECK(weights_ != nullptr, "check_weights() refuses updates of a frozen engine");
  const auto& delivery = services().delivery();
  const WeightsKey key = key_of(delivery.tenant);
  coming_[key] = Coming{update.version, delivery.ref};
  if (const auto wait = take(key)) services().set_timer("weights", *wait);
  return ok();
}

WeightsKey EngineUser::key_of(TenantSlot tenant) const {
  return weights_ == nullptr ? WeightsKey{tenant} : weights_key(services(), tenant);
}

Status EngineUser::take_weights() {
  bool has_taken = false;
  Duration wait = kWeightsRetry;
  for (auto each = coming_.begin(); each != coming_.end() && !has_taken;) {
    const auto again = take((each++)->first);
    has_taken = !again;
    wait = std::min(wait, again.value_or(Duration()));
  }
  if (!coming_.empty()) services().set_timer("weights", wait);
  return ok();
}

/// Applies the version that is coming, or the channel's newest version if that one was retired. If
/// it fails, the engine keeps its weights and the answer's `fault` says why.
std::optional<Duration> EngineUser::take(WeightsKey key) {
  Coming& coming = coming_.at(key);
  PolicyApplied answer;
  answer.version = coming.version;
  answer.engine = services().self();
  bool has_changed = false;
  auto snapshot = weights_->fetch(key, coming.version);
  if (!snapshot.ok() && snapshot.error().code() == Code::kNotFound &&
      weights_->newest(key) > coming.version) {
    answer.version = weights_->newest(key);
    snapshot = weights_->fetch(key, answer.version);
  }
  if (!snapshot.ok() && snapshot.error().code() == Code::kUnavailable) return kWeightsRetry;
  if (snapshot.ok()) {
    const auto num_tensors = apply(*snapshot, coming);
    if (num_tensors.ok() && !num_tensors->has_value()) return kPreparedRetry;
    if (num_tensors.ok()) {
      answer.num_tensors = **num_tensors;
      has_changed = answer.version > applied_.of(key);
      CHECK(applied_.raise(key, answer.version), "an engine with more keys than allowed");
    } else {
      answer.fault = num_tensors.error().text();
    }
  } else {
    answer.fault = snapshot.error().text();
  }
  const StepRef cause = coming.cause;
  coming_.erase(key);
  // The load is sent before the answer, so the router knows that this engine has the version before
  // a group opens under it.
  send_load(engine_->state(), has_changed ? std::optional(key) : std::nullopt);
  applied_out_.send(std::move(answer), for_tenant(key.tenant).answering(cause));
  return std::nullopt;
}

Result<std::optional<uint64_t>> EngineUser::apply(
    const std::shared_ptr<const WeightSnapshot>& snapshot, Coming& coming) {
  if (++coming.num_preparations <= kPreparationsMax) return engine_->apply_prepared(snapshot);
  ASSIGN_OR_RETURN(const uint64_t num_tensors, engine_->apply(*snapshot));
  return std::optional(num_tensors);
}

/// A newer load overwrites an older one that has not arrived. So a load repeats the versions of the
/// last one, unless that one has arrived.
void EngineUser::send_load(const EngineState& state, std::optional<WeightsKey> changed) {
  EngineLoad load;
  load.engine = services().self();
  load.num_running = state.num_running;
  load.num_free_blocks = state.num_free_blocks;
  load.num_blocks = state.num_blocks;
  load.num_completed = state.num_completed;
  load.num_failed = state.num_failed;
  fill(load, state);
  if (sent_load_ && !changed && !has_changed(*sent_load_, load)) return;
  if (load_tenant_.is_none()) return;
  if (!sent_load_)
    load.applied = applied_;
  else if (!sent_load_->applied.empty() && !load_.has_arrived())
    load.applied = sent_load_->applied;
  if (changed)
    CHECK(load.applied.raise(*changed, applied_.of(*changed)), "a load with too many keys");
  sent_load_ = load;
  load_.send(std::move(load), for_tenant(load_tenant_));
}

}  // namespace primerl
