// The step of a tenant's change: GroupSteps for StepKind::kTenant. It belongs to the whole group
// and runs on the group's thread. A change that is late or repeated is a step that does nothing.
#include <algorithm>
#include <utility>

#include "runtime/exec/group_steps.h"

namespace primerl {

void GroupSteps::begin_tenant(Input&& input, Time now) {
  step_ = Step::kTenant;
  current_ = 0;
  tenant_change_ = std::move(input.tenant_change);
  tenant_drains_ = input.drains;
  if (const auto& present = common_->tenants.by_slot()[tenant_change_->slot.index()];
      tenant_drains_ && present != nullptr) {
    TenantChange pause = *tenant_change_;
    pause.tenancy = present->tenancy;
    pause.name = present->name;
    tenant_change_ = std::make_shared<const TenantChange>(std::move(pause));
  }
  tenant_status_ = ok();
  tenant_began_ = now;
  handling_.set(InstanceId::kNone);
  handling_type_.set(0);
  handling_kind_.set(static_cast<uint64_t>(StepKind::kTenant));
}

void GroupSteps::run_tenant() {
  const TenantChange& change = *tenant_change_;
  GroupTenants& tenants = common_->tenants;
  const Result<bool> due = tenants.is_due(change);
  if (!due.ok()) {
    tenant_status_ = due.error();
    return;
  }
  if (tenant_drains_) actors_.drain_tenant(change.slot, tenant_began_);
  if (!*due) return;
  switch (change.kind) {
    case TenantChange::Kind::kJoin:
      tenant_status_ = join(change);
      return;
    case TenantChange::Kind::kStart:
    case TenantChange::Kind::kPause:
    case TenantChange::Kind::kResume:
      tenants.make(change, nullptr);
      tenant_status_ = actors_.notify(change.slot, change.kind, num_steps_.get(), tenant_began_);
      if (change.kind == TenantChange::Kind::kStart) actors_.drain_late(change.slot, tenant_began_);
      return;
    case TenantChange::Kind::kLeave:
      tenant_status_ = leave(change);
      return;
    case TenantChange::Kind::kSet:
      tenant_status_ = set_values(change);
      return;
  }
}

Status GroupSteps::join(const TenantChange& change) {
  ASSIGN_OR_RETURN(const auto tenant, common_->make_tenant(change));
  common_->tenants.make(change, tenant);
  const TenantSlot slot = change.slot;
  Status joined = notify_resources(*tenant, change.kind);
  const bool do_actors_know = joined.ok();
  if (joined.ok()) joined = actors_.occupy(slot, tenant_began_);
  if (joined.ok()) joined = actors_.notify(slot, change.kind, num_steps_.get(), tenant_began_);
  if (joined.ok()) return ok();
  // The group is as before. Its actors forget what they did for the tenant. Those that have not
  // heard of it must not hear that it leaves: they would ask for a tenant that they do not have.
  if (do_actors_know)
    (void)actors_.notify(slot, TenantChange::Kind::kLeave, num_steps_.get(), tenant_began_);
  common_->tenants.undo_join(change);
  actors_.vacate(slot, tenant_began_);
  (void)notify_resources(*tenant, TenantChange::Kind::kLeave);
  return Error(joined.error())
      .while_doing(fmt::format("tenant '{}' joins '{}'", change.name, planned_.name));
}

/// Actors are not called: they read a value when they need it.
Status GroupSteps::set_values(const TenantChange& change) {
  ASSIGN_OR_RETURN(auto tenant, common_->tenants.with_values(change));
  common_->tenants.make(change, tenant);
  actors_.refresh_tenants();
  return notify_resources(*tenant, change.kind);
}

Status GroupSteps::leave(const TenantChange& change) {
  const auto tenant = common_->tenants.by_slot()[change.slot.index()];
  Status left = actors_.notify(change.slot, change.kind, num_steps_.get(), tenant_began_);
  common_->tenants.make(change, nullptr);
  actors_.vacate(change.slot, tenant_began_);
  Status told = notify_resources(*tenant, change.kind);
  return left.ok() ? told : left;
}

/// Those that the group owns, and the shared ones that an actor of the slot uses.
Status GroupSteps::notify_resources(const Tenant& tenant, TenantChange::Kind kind) {
  if (!setup().tenant_resources) return ok();
  Status first;
  const auto tell = [&](int32_t index, Resource& resource) {
    const Status status = setup().tenant_resources(*setup().plan, index, resource, tenant, kind);
    if (first.ok() && !status.ok()) first = status;
  };
  for (size_t i = 0; i < planned_.resources.size(); ++i)
    tell(planned_.resources[i], *common_->owned[i]);
  std::vector<int32_t> told(planned_.resources);
  for (const InstanceId id : planned_.instances) {
    const PlanInstance& instance = setup().plan->instance(id);
    if (instance.tenant != tenant.slot) continue;
    for (const int32_t index : instance.resources) {
      if (index < 0 || std::ranges::find(told, index) != told.end()) continue;
      told.push_back(index);
      if (Resource* shared = setup().shared_resources[static_cast<size_t>(index)];
          shared != nullptr)
        tell(index, *shared);
    }
  }
  return first;
}

void GroupSteps::complete_tenant(Time ended) {
  arm_work();
  links_.grant_at_once(!actors_.leaving().empty());
  if (!tenant_status_.ok())
    setup().process_services->log(
        LogLevel::kWarning, planned_.name,
        fmt::format("{} of tenant '{}' failed: {}", to_string(tenant_change_->kind),
                    tenant_change_->name, tenant_status_.error().text()));
  if (setup().observer != nullptr) {
    StepRecord record;
    record.group = setup().group;
    record.kind = StepKind::kTenant;
    record.step = num_steps_.get();
    record.began = tenant_began_;
    record.ended = ended;
    record.tenant_change = tenant_change_.get();
    if (!tenant_status_.ok()) record.error = &tenant_status_.error();
    setup().observer->on_step(record);
  }
  const auto change = std::exchange(tenant_change_, nullptr);
  // If the group follows a record, the change was reported in the recorded run.
  if (setup().step_source == nullptr && !tenant_drains_)
    setup().executor->tenant_changed(setup().group, *change, std::exchange(tenant_status_, ok()));
}

Status GroupSteps::restore_slots(const GroupState& state, Time now) {
  const Here here(setup().group);
  return actors_.restore_slots(state, now);
}

Status GroupSteps::notify_of_joined() {
  // A tenant that joined may have the slot of one of the plan, which must be free before.
  const GroupTenants& tenants = common_->tenants;
  for (const Tenant& tenant : setup().plan->tenants)
    if (!tenants.is_planned(tenant.slot))
      RETURN_IF_ERROR(notify_resources(tenant, TenantChange::Kind::kLeave));
  // As when it joined: values were set later, and change nothing else of the learner's tenant.
  for (const auto& tenant : tenants.by_slot())
    if (tenant != nullptr && !tenants.is_planned(tenant->slot))
      RETURN_IF_ERROR(
          notify_resources(tenants.before_values(tenant->slot), TenantChange::Kind::kJoin));
  for (const TenantSlot slot : tenants.with_values())
    RETURN_IF_ERROR(notify_resources(*tenants.by_slot()[slot.index()], TenantChange::Kind::kSet));
  return ok();
}

}  // namespace primerl
