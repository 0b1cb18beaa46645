#include "actors/common/engine_user.h"

#include <algorithm>
#include <set>
#include <utility>

#include "actors/common/tenant_key.h"

namespace primerl {

Status EngineUser::start(Resources& resources) {
  engine_ = &resources.get<Engine>("engine");
  weights_ = resources.get_if<WeightChannel>("weights");
  if (weights_ != nullptr) RETURN_IF_ERROR(weights_->expect(engine_->manifest()));
  for (const TenantSlot slot : services().tenants()) known_[slot] = false;
  choose_load_tenant();
  return ok();
}

Status EngineUser::on_tenant(TenantSlot slot, TenantChange::Kind kind) {
  switch (kind) {
    case TenantChange::Kind::kJoin:  // other processes may not know it yet
      known_.erase(slot);
      break;
    case TenantChange::Kind::kStart:
    case TenantChange::Kind::kResume:
      known_[slot] = false;
      break;
    case TenantChange::Kind::kPause:
      if (known_.contains(slot)) known_[slot] = true;
      break;
    case TenantChange::Kind::kLeave:
      known_.erase(slot);
      drop_tenant(slot);
      break;
    case TenantChange::Kind::kSet:  // no actor is called
      break;
  }
  choose_load_tenant();
  return ok();
}

void EngineUser::choose_load_tenant() {
  const auto open = std::ranges::find(known_, false, [](const auto& each) { return each.second; });
  if (open != known_.end())
    load_tenant_ = open->first;
  else
    load_tenant_ = known_.empty() ? TenantSlot() : known_.begin()->first;
}

/// The other user of the engine does the same; what is dropped already is ignored.
void EngineUser::drop_tenant(TenantSlot slot) {
  std::set<WeightsKey> keys;
  if (weights_ != nullptr) keys.insert(weights_key(services(), slot));
  for (const auto& [key, version] : applied_.of_tenant(slot)) keys.insert(key);
  for (const auto& [key, coming] : coming_)
    if (key.tenant == slot) keys.insert(key);
  for (const WeightsKey key : keys) {
    coming_.erase(key);
    applied_.erase(key);
    engine_->drop(key);
    weights_->drop(key);
  }
  // A load that was sent for the tenant may not have arrived.
  sent_load_.reset();
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
  const WeightsKey key = key_of(services(), delivery.tenant, update.adapter);
  std::vector<WeightsKey> gone = drop_unnamed(update, key);
  bool is_any_new = false;
  for (const AdapterVersion& other : update.others) {
    const WeightsKey name = key_of(services(), delivery.tenant, other.adapter);
    const auto coming = coming_.find(name);
    if (other.version <= applied_.of(name) ||
        (coming != coming_.end() && other.version <= coming->second.version))
      continue;
    coming_[name] = Coming{other.version, delivery.ref};
    is_any_new = true;
  }
  std::optional<Duration> wait;
  if (!update.is_dropped) {
    coming_[key] = Coming{update.version, delivery.ref};
    wait = take(key, gone);
  }
  if (!gone.empty()) send_load(engine_->state(), std::nullopt, gone);
  if (update.is_dropped) answer_for_others(key, delivery.ref);
  if (is_any_new) wait = Duration();
  if (wait) services().set_timer("weights", *wait);
  return ok();
}

/// Both users of an engine get the update, and each forgets the key. The other one cannot apply it
/// again: the channel of this process has forgotten it.
std::vector<WeightsKey> EngineUser::drop_unnamed(const PolicyUpdate& update, WeightsKey key) {
  std::set<WeightsKey> gone;
  const auto look_at = [&](WeightsKey each) {
    if (each.is_snapshot() && each.moving_key() == key.moving_key()) gone.insert(each);
  };
  for (const auto& [each, version] : applied_.of_tenant(key.tenant)) look_at(each);
  for (const auto& [each, coming] : coming_) look_at(each);
  if (update.is_dropped)
    look_at(key);
  else
    gone.erase(key);
  for (const AdapterVersion& other : update.others)
    gone.erase(key_of(services(), key.tenant, other.adapter));
  for (const WeightsKey each : gone) {
    coming_.erase(each);
    applied_.erase(each);
    weights_->drop(each);
    on_drop(each);
  }
  return {gone.begin(), gone.end()};
}

Result<WeightsKey> EngineUser::key_for(TenantSlot tenant, AdapterId adapter) const {
  const WeightsKey key = key_of(services(), tenant, adapter);
  if (key.is_snapshot() && applied_.of(key).is_none())
    return error(Code::kNotFound, "this engine does not have {}", key)
        .note(weights_ == nullptr ? "its weights are those of its model folder"
                                  : "the snapshot was dropped, or is not live yet");
  return weights_ == nullptr ? WeightsKey{tenant} : key;
}

Status EngineUser::take_weights() {
  bool has_taken = false;
  Duration wait = kWeightsRetry;
  for (auto each = coming_.begin(); each != coming_.end() && !has_taken;) {
    std::vector<WeightsKey> none_gone;
    const auto again = take((each++)->first, none_gone);
    has_taken = !again;
    wait = std::min(wait, again.value_or(Duration()));
  }
  if (!coming_.empty()) services().set_timer("weights", wait);
  return ok();
}

/// Applies the version that is coming, or the channel's newest version if that one was retired. If
/// it fails, the engine keeps its weights and the answer's `fault` says why.
std::optional<Duration> EngineUser::take(WeightsKey key, std::vector<WeightsKey>& gone) {
  Coming& coming = coming_.at(key);
  PolicyApplied answer;
  answer.version = coming.version;
  bool has_changed = false;
  auto snapshot = weights_->fetch(key, coming.version);
  if (!snapshot.ok() && snapshot.error().code() == Code::kNotFound &&
      weights_->newest(key) > coming.version) {
    answer.version = weights_->newest(key);
    snapshot = weights_->fetch(key, answer.version);
  }
  if (!snapshot.ok() && snapshot.error().code() == Code::kUnavailable) return kWeightsRetry;
  if (!snapshot.ok() && snapshot.error().code() == Code::kNotFound && is_forgotten(key)) {
    const StepRef cause = coming.cause;
    coming_.erase(key);
    if (!gone.empty()) send_load(engine_->state(), std::nullopt, std::exchange(gone, {}));
    answer_for_others(key, cause);
    return std::nullopt;
  }
  if (snapshot.ok()) {
    const auto num_tensors = apply(*snapshot, coming);
    if (num_tensors.ok() && !num_tensors->has_value())
      return prepared_retry(coming.num_preparations);
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
  send_load(engine_->state(), has_changed ? std::optional(key) : std::nullopt,
            std::exchange(gone, {}));
  send_answer(std::move(answer), key, cause);
  return std::nullopt;
}

void EngineUser::send_answer(PolicyApplied answer, WeightsKey key, StepRef cause) {
  answer.engine = services().self();
  answer.adapter = adapter_in_message(key);
  for (const auto& [other, version] : applied_.of_tenant(key.tenant))
    if (other != key && other.moving_key() == key.moving_key())
      answer.others.push_back({adapter_in_message(other), version});
  applied_out_.send(std::move(answer), for_tenant(key.tenant).answering(cause));
}

/// An engine may have a version before an update names it: the newest one replaces a retired one.
/// If that update is replaced by one without an answer of its own, the broadcaster would wait for
/// the version until it sets the engine aside.
void EngineUser::answer_for_others(WeightsKey key, StepRef cause) {
  // A moving key comes before its snapshots.
  for (const auto& [other, version] : applied_.of_tenant(key.tenant)) {
    if (other == key || other.moving_key() != key.moving_key()) continue;
    PolicyApplied answer;
    answer.version = version;
    return send_answer(std::move(answer), other, cause);
  }
}

/// The publisher dropped the snapshot from the channel, and the update with the drop is on its way.
bool EngineUser::is_forgotten(WeightsKey key) const {
  return key.is_snapshot() && weights_->newest(key).is_none();
}

Result<std::optional<uint64_t>> EngineUser::apply(
    const std::shared_ptr<const WeightSnapshot>& snapshot, Coming& coming) {
  if (++coming.num_preparations <= kPreparationsMax) return engine_->apply_prepared(snapshot);
  ASSIGN_OR_RETURN(const uint64_t num_tensors, engine_->apply(*snapshot));
  return std::optional(num_tensors);
}

void EngineUser::send_load(const EngineState& state, std::optional<WeightsKey> changed,
                           const std::vector<WeightsKey>& gone) {
  EngineLoad load;
  load.engine = services().self();
  load.num_running = state.num_running;
  load.num_free_blocks = state.num_free_blocks;
  load.num_blocks = state.num_blocks;
  load.num_completed = state.num_completed;
  load.num_failed = state.num_failed;
  fill(load, state);
  if (sent_load_ && !changed && gone.empty() && !has_changed(*sent_load_, load)) return;
  if (load_tenant_.is_none()) return;
  add_changes(load, changed, gone);
  sent_load_ = load;
  load_.send(std::move(load), for_tenant(load_tenant_));
}

/// A newer load overwrites an older one that has not arrived. So a load repeats the versions of the
/// last one, unless that one has arrived.
void EngineUser::add_changes(EngineLoad& load, std::optional<WeightsKey> changed,
                             const std::vector<WeightsKey>& gone) const {
  const bool is_repeated = sent_load_ && sent_load_->has_versions() && !load_.has_arrived();
  load.is_whole = !sent_load_ || (is_repeated && sent_load_->is_whole);
  if (load.is_whole) {
    load.applied = applied_;
    return;
  }
  if (is_repeated) {
    load.applied = sent_load_->applied;
    load.gone = sent_load_->gone;
  }
  if (changed)
    CHECK(load.applied.raise(*changed, applied_.of(*changed)), "a load with too many keys");
  for (const WeightsKey key : gone) {
    load.applied.erase(key);
    load.gone.push_back(key);
  }
  if (load.gone.size() <= kWeightsKeysMax) return;
  load.applied = applied_;
  load.gone.clear();
  load.is_whole = true;
}

}  // namespace primerl
