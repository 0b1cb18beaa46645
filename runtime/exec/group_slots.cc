// The part of GroupActors for tenants that join and leave: actors take the place of place holders,
// and back.
#include "graph/joining.h"
#include "runtime/exec/group_actors.h"
#include "runtime/exec/group_steps.h"

namespace primerl {

Result<std::shared_ptr<const Tenant>> GroupCommon::make_tenant(const TenantChange& change) const {
  if (setup.make_tenant) {
    // Files of the tenant belong to this group, also when it is restored, outside of any step.
    const GroupId before = GroupSteps::enter(setup.group);
    auto made = setup.make_tenant(*setup.plan, change);
    GroupSteps::enter(before);
    return made;
  }
  return tenant_of_join(*setup.plan, change, *setup.plan->catalog);
}

Status GroupActors::occupy(TenantSlot tenant, Time now) {
  leaving_.erase(tenant);
  set_aside_.erase(tenant);  // an order that came late was about an earlier tenant
  // All shared actors know the tenant, also if one of its own actors cannot be made.
  for (uint32_t i = 0; i < slots_.size(); ++i)
    if (common_->tenant_of(i).is_none()) slots_[i].running->refresh_tenants();
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (common_->tenant_of(i) != tenant) continue;
    slots_[i].has_drained = false;
    RETURN_IF_ERROR(make_actor(i, now));
  }
  update_vacant();
  return ok();
}

Status GroupActors::notify(TenantSlot tenant, TenantChange::Kind kind, uint64_t step, Time now) {
  Status first;
  const auto call = [&](uint32_t actor) {
    Running& running = *slots_[actor].running;
    if (running.is_vacant() || !running.has_begun()) return;
    const Status status = running.on_tenant(tenant, kind, step, now);
    if (first.ok() && !status.ok()) first = status;
    apply_effects(running);
    save_snapshot(actor);
  };
  for (uint32_t i = 0; i < slots_.size(); ++i)
    if (common_->tenant_of(i) == tenant) call(i);
  for (uint32_t i = 0; i < slots_.size(); ++i)
    if (common_->tenant_of(i).is_none()) call(i);
  return first;
}

Status GroupActors::repeat_changes(Time now) {
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    RETURN_IF_ERROR(repeat_changes(i, now));
    // The saved state has the timers that count.
    slots_[i].running->timers.clear();
    slots_[i].running->pauses.clear();
  }
  return ok();
}

Status GroupActors::repeat_changes(uint32_t actor, Time now) {
  Running& running = *slots_[actor].running;
  if (running.is_vacant()) return ok();
  for (const TenantChange& change : common_->tenants.changes_of(common_->tenant_of(actor)))
    RETURN_IF_ERROR(running.on_tenant(change.slot, change.kind, 0, now));
  return ok();
}

/// A group that follows a record gets the drain from it.
void GroupActors::drain_late(TenantSlot tenant, Time now) {
  if (!is_draining_ || setup().step_source != nullptr) return;
  for (uint32_t i = 0; i < slots_.size(); ++i)
    if (common_->tenant_of(i) == tenant) drain(i, now);
}

void GroupActors::vacate(TenantSlot tenant, Time now) {
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (common_->tenant_of(i).is_none()) {
      slots_[i].running->refresh_tenants();
      std::erase_if(slots_[i].restarts,
                    [tenant](const ActorRestart& restart) { return restart.tenant == tenant; });
    }
    if (common_->tenant_of(i) != tenant) continue;
    cancel_timers(i);
    const Contract& contract = slots_[i].running->contract();
    for (uint32_t port = 0; port < contract.inputs.size(); ++port)
      links_.inbox().pause(i, port, false);
    slots_[i].snapshot = {};
    slots_[i].restarts.clear();
    slots_[i].has_drained = false;
    common_->counters[i].restore({});
    const Status made = make_actor(i, now);
    CHECK(made.ok(), "a place holder was not made");
  }
  finished_.erase(tenant);
  failed_.erase(tenant);
  set_aside_.erase(tenant);
  leaving_.erase(tenant);
  update_vacant();
}

Status GroupActors::restore_slots(const GroupState& state, Time now) {
  GroupTenants& tenants = common_->tenants;
  const TenantsBySlot before = tenants.by_slot();
  TenantsBySlot joined;
  for (const SavedSlot& saved : state.slots) {
    // Without begins_at: its actors continue from the state, not from that checkpoint.
    const TenantChange change = {TenantChange::Kind::kJoin, saved.slot, saved.tenancy, saved.name,
                                 saved.table};
    ASSIGN_OR_RETURN(auto tenant, common_->make_tenant(change));
    joined.push_back(std::move(tenant));
  }
  RETURN_IF_ERROR(tenants.restore(state, joined));
  if (slots_.empty() || slots_.front().running == nullptr) return ok();  // start() makes them
  for (uint32_t slot = 0; slot < before.size(); ++slot) {
    const TenantSlot tenant(slot);
    const auto& present = tenants.by_slot()[slot];
    const bool was_there = before[slot] != nullptr;
    if (was_there == (present != nullptr) &&
        (present == nullptr || before[slot]->tenancy == present->tenancy))
      continue;
    // The actors still know the tenant that they started with.
    if (was_there) RETURN_IF_ERROR(notify(tenant, TenantChange::Kind::kLeave, 0, now));
    if (present == nullptr) {
      vacate(tenant, now);
      continue;
    }
    RETURN_IF_ERROR(occupy(tenant, now));
  }
  refresh_tenants();
  return ok();
}

void GroupActors::refresh_tenants() {
  for (ActorSlot& slot : slots_) slot.running->refresh_tenants();
}

}  // namespace primerl
