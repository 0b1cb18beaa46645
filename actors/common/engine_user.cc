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
  coming_.reset();
  return ok();
}

Status EngineUser::on_update(const PolicyUpdate& update) {
  const auto& delivery = services().delivery();
  coming_ = Coming{update.version, delivery.tenant, delivery.ref};
  return take_weights();
}

Status EngineUser::take_weights() {
  if (!coming_) return ok();
  auto applied = apply(coming_->version);
  if (!applied) {
    services().set_timer("weights", kWeightsRetry);
    return ok();
  }
  if (applied->fault.empty()) applied_ = std::max(applied_, applied->version);
  // The router learns it first: a group opened under this version finds an engine at once.
  tell_load(engine_->state());
  applied_out_.send(std::move(*applied), for_tenant(coming_->tenant).answering(coming_->cause));
  coming_.reset();
  return ok();
}

/// Applies `version`, or the channel's newest when `version` has been retired. An answer, whose
/// `fault` is not empty when it failed and the engine keeps its weights; nothing when the bytes
/// have not come yet: ask again.
std::optional<PolicyApplied> EngineUser::apply(PolicyVersion version) {
  PolicyApplied answer;
  answer.version = version;
  answer.engine = services().self();
  auto snapshot = weights_->fetch(version);
  if (!snapshot.ok() && snapshot.error().code() == Code::kNotFound &&
      weights_->newest() > version) {
    answer.version = weights_->newest();
    snapshot = weights_->fetch(answer.version);
  }
  if (!snapshot.ok() && snapshot.error().code() == Code::kUnavailable) return std::nullopt;
  if (!snapshot.ok()) {
    answer.fault = snapshot.error().text();
    return answer;
  }
  auto num_tensors = engine_->apply(**snapshot);
  if (num_tensors.ok())
    answer.num_tensors = *num_tensors;
  else
    answer.fault = num_tensors.error().text();
  return answer;
}

void EngineUser::tell_load(const EngineState& state) {
  EngineLoad load;
  load.engine = services().self();
  load.num_running = state.num_running;
  load.num_free_blocks = state.num_free_blocks;
  load.num_blocks = state.num_blocks;
  load.applied = applied_;
  fill(load, state);
  if (told_load_ && told_load_->applied == load.applied && !is_news(*told_load_, load)) return;
  if (load_tenant_.is_none()) return;
  told_load_ = load;
  load_.send(std::move(load), for_tenant(load_tenant_));
}

}  // namespace primerl
