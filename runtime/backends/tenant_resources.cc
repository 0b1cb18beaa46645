#include "runtime/backends/tenant_resources.h"

#include "graph/tenant_outside.h"
#include "kernels/engine/engine.h"
#include "kernels/scripted/options.h"
#include "kernels/train/learner.h"
#include "kernels/weights/channel.h"
#include "runtime/backends/tenant_options.h"

namespace primerl {
namespace {

const LearnerOptions& learner_options(const PlanResource& resource) {
  const void* options = resource.options.get();
  return resource.backend == "scripted" ? *static_cast<const ScriptedLearnerOptions*>(options)
                                        : *static_cast<const LearnerOptions*>(options);
}

Status notify_learner(const Plan& plan, const PlanResource& resource, Learner& learner,
                      const Tenant& tenant, TenantChange::Kind kind) {
  if (!tenant.adapter.is_there()) return ok();  // whole weights belong to no tenant
  if (kind == TenantChange::Kind::kLeave) {
    learner.end_tenant(tenant.slot);
    return ok();
  }
  return learner.begin_tenant(adapter_training_of(tenant, static_cast<uint64_t>(plan.settings.seed),
                                                  learner_options(resource)));
}

}  // namespace

Status notify_resource(const Plan& plan, int32_t index, Resource& resource, const Tenant& tenant,
                       TenantChange::Kind kind) {
  using Kind = TenantChange::Kind;
  if (kind != Kind::kJoin && kind != Kind::kLeave && kind != Kind::kSet) return ok();
  const PlanResource& planned = plan.resources[static_cast<size_t>(index)];
  const bool is_learner = planned.kind == Learner::kResourceKind;
  if (is_learner && kind != Kind::kSet)
    RETURN_IF_ERROR(notify_learner(plan, planned, static_cast<Learner&>(resource), tenant, kind));
  if (kind != Kind::kLeave && tenant.share > 0) {
    // A tenant that joins may have another share than was planned for its slot.
    if (is_learner) static_cast<Learner&>(resource).set_share(tenant.slot, tenant.share);
    if (planned.kind == Engine::kResourceKind)
      static_cast<Engine&>(resource).set_share(tenant.slot, tenant.share);
  }
  if (planned.kind == Outside::kResourceKind && kind != Kind::kSet) {
    // A listener has no slot.
    if (planned.slot != tenant.slot) return ok();
    auto& outside = static_cast<Outside&>(resource);
    if (kind == Kind::kLeave)
      outside.end_tenant();
    else
      outside.begin_tenant(outside_of(tenant).spec);
    return ok();
  }
  if (kind != Kind::kLeave) return ok();
  const WeightsKey key{tenant.slot, AdapterId(tenant.tenancy)};
  if (planned.kind == Engine::kResourceKind) static_cast<Engine&>(resource).drop(key);
  if (planned.kind == WeightChannel::kResourceKind) static_cast<WeightChannel&>(resource).drop(key);
  return ok();
}

}  // namespace primerl
