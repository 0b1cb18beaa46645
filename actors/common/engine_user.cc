#include "actors/common/engine_user.h"

#include <algorithm>

namespace primerl {

Status EngineUser::start(Resources& resources) {
  engine_ = &resources.get<Engine>("engine");
  weights_ = &resources.get<WeightChannel>("weights");
  RETURN_IF_ERROR(weights_->expect(engine_->manifest()));
  if (!services().tenants().empty()) load_tenant_ = services().tenants().front();
  return ok();
}

/// Weights that have not come by now are nobody's.
Status EngineUser::drain() {
  coming_.clear();
  return ok();
}

Status EngineUser::on_update(const PolicyUpdate& update) {
  const auto& delivery = services().delivery();
  const WeightsKey key{delivery.tenant};
  coming_[key] = Coming{update.version, delivery.ref};
  if (!take(key)) services().set_timer("weights", kWeightsRetry);
  return ok();
}

Status EngineUser::take_weights() {
  bool has_taken = false;
  for (auto each = coming_.begin(); each != coming_.end() && !has_taken;)
    has_taken = take((each++)->first);
  if (!coming_.empty()) services().set_timer("weights", has_taken ? Duration() : kWeightsRetry);
  return ok();
}

bool EngineUser::take(WeightsKey key) {
  const Coming coming = coming_.at(key);
  auto applied = apply(key, coming.version);
  if (!applied) return false;
  coming_.erase(key);
  // The router learns it first: a group opened under this version finds an engine at once.
  tell_load(engine_->state());
  applied_out_.send(std::move(*applied), for_tenant(key.tenant).answering(coming.cause));
  return true;
}

/// Applies `version`, or the channel's newest when `version` has been retired. An answer, whose
/// `fault` is not empty when it failed and the engine keeps its weights; nothing when the bytes
/// have not come yet: ask again.
std::optional<PolicyApplied> EngineUser::apply(WeightsKey key, PolicyVersion version) {
  PolicyApplied answer;
  answer.version = version;
  answer.engine = services().self();
  auto snapshot = weights_->fetch(key, version);
  if (!snapshot.ok() && snapshot.error().code() == Code::kNotFound &&
      weights_->newest(key) > version) {
    answer.version = weights_->newest(key);
    snapshot = weights_->fetch(key, answer.version);
  }
  if (!snapshot.ok() && snapshot.error().code() == Code::kUnavailable) return std::nullopt;
  if (!snapshot.ok()) {
    answer.fault = snapshot.error().text();
    return answer;
  }
  auto num_tensors = engine_->apply(**snapshot);
  if (!num_tensors.ok()) {
    answer.fault = num_tensors.error().text();
    return answer;
  }
  answer.num_tensors = *num_tensors;
  CHECK(applied_.raise(key, answer.version), "an engine with more keys than it may hold");
  return answer;
}

void EngineUser::tell_load(const EngineState& state) {
  EngineLoad load;
  load.engine = services().self();
  load.num_running = state.num_running;
  load.num_free_blocks = state.num_free_blocks;
  load.num_blocks = state.num_blocks;
  load.num_completed = state.num_completed;
  load.num_failed = state.num_failed;
  load.applied = applied_;
  fill(load, state);
  if (told_load_ && told_load_->applied == load.applied && !is_news(*told_load_, load)) return;
  if (load_tenant_.is_none()) return;
  told_load_ = load;
  load_.send(std::move(load), for_tenant(load_tenant_));
}

}  // namespace primerl
