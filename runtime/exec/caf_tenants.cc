// Tenants that join, leave and drain in a CafExecutor.
#include <algorithm>
#include <set>
#include <utility>

#include "runtime/exec/caf_core.h"

namespace primerl {

Status CafExecutor::Core::change_tenant(const TenantChange& change) {
  RETURN_IF_ERROR(check_slot(*setup_.plan, change.slot));
  std::set<GroupId> concerned;
  for (auto* cell : here_)
    if (cell->group().concerns(change.slot)) concerned.insert(cell->group().id());
  if (concerned.empty()) {
    // No instance of this process has to do with tenants.
    if (setup_.events.tenant_changed) setup_.events.tenant_changed(change, ok());
    return ok();
  }
  TenantChange made = change;
  if (made.kind == TenantChange::Kind::kJoin && setup_.begins_from)
    made.begins_at = setup_.begins_from(change);
  {
    // The cells get all changes in the same order.
    const std::lock_guard lock(mutex_);
    RETURN_IF_ERROR(changes_.add(made, concerned));
    for (const GroupId id : concerned) cells_[id.index()]->change_tenant(made);
  }
  return ok();
}

void CafExecutor::Core::drain_tenant(TenantSlot slot) {
  if (!check_slot(*setup_.plan, slot).ok()) return;
  {
    const std::lock_guard lock(mutex_);
    slot_drains_.try_emplace(slot).first->second.ordered(clock_.now(),
                                                         setup_.plan->settings.drain_max);
    for (auto* cell : here_)
      if (cell->group().concerns(slot)) cell->drain_tenant(slot);
  }
  timers_->notice();
}

uint64_t CafExecutor::Core::num_steps_of(TenantSlot slot) const {
  uint64_t sum = 0;
  for (auto* cell : here_) {
    if (!cell->group().concerns(slot)) continue;
    const SlotCounts counts = cell->slot_counts(slot);
    sum += counts.num_shipped + counts.num_received;
    const PlanGroup& planned = setup_.plan->group(cell->group().id());
    const auto is_own = [&](InstanceId id) { return setup_.plan->instance(id).tenant == slot; };
    if (std::ranges::all_of(planned.instances, is_own)) sum += cell->group().counts().num_steps;
  }
  return sum;
}

void CafExecutor::Core::tenant_changed(GroupId group, const TenantChange& change, Status status) {
  std::optional<MadeChange> made;
  {
    const std::lock_guard lock(mutex_);
    made = changes_.made(group, change, status);
    if (!made) return;
    const bool has_left = change.kind == TenantChange::Kind::kLeave;
    if (made->status.ok() && (has_left || change.kind == TenantChange::Kind::kJoin)) {
      // Facts of the slot from before are of another tenant.
      set_aside_.erase(change.slot);
      num_abandoned_of_left_.insert(change.slot);
      if (has_left)
        finished_.insert(change.slot);
      else
        finished_.erase(change.slot);
    }
  }
  if (setup_.events.tenant_changed) setup_.events.tenant_changed(made->change, made->status);
}

/// On the timer thread.
void CafExecutor::Core::watch_slots(Time now) {
  std::vector<TenantSlot> drained;
  {
    const std::lock_guard lock(mutex_);
    for (const TenantSlot slot : num_abandoned_of_left_) num_abandoned_.erase(slot);
    num_abandoned_of_left_.clear();
    for (auto& [slot, drain] : slot_drains_) {
      drain.saved(last_saved_, setup_.plan->settings.drain_max);
      if (now >= drain.deadline() && !std::exchange(drain.is_late, true))
        for (auto* cell : here_)
          if (cell->group().concerns(slot)) cell->set_aside(slot);
      const auto is_over = [this, slot = slot, &drain = drain] {
        std::vector<SlotCounts> counts;
        for (auto* cell : here_)
          if (cell->group().concerns(slot)) counts.push_back(cell->slot_counts(slot));
        return drain.is_over(counts);
      };
      // It counts twice, because a message may be in transit during the first count.
      if (is_over() || is_over()) drained.push_back(slot);
    }
    for (const TenantSlot slot : drained) slot_drains_.erase(slot);
    for (auto& [slot, drain] : slot_drains_) timers_->look_by(now + drain.next_pause());
  }
  if (!setup_.events.tenant_drained) return;
  for (const TenantSlot slot : drained) setup_.events.tenant_drained(slot);
}

}  // namespace primerl
