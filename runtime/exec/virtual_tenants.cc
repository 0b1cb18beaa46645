// Tenants that join, leave and drain in a VirtualExecutor.
#include <algorithm>
#include <set>
#include <utility>

#include "runtime/exec/virtual_executor.h"

namespace primerl {

Status VirtualExecutor::change_tenant(const TenantChange& change) {
  CHECK(!is_replaying_, "a tenant's change was given while groups follow a record");
  RETURN_IF_ERROR(check_slot(*plan_, change.slot));
  std::set<GroupId> concerned;
  for (const GroupSlot& slot : slots_)
    if (slot.group && slot.group->concerns(change.slot)) concerned.insert(slot.group->id());
  RETURN_IF_ERROR(changes_.add(change, concerned));
  for (const GroupId id : concerned) group(id).change_tenant(change, now_);
  return ok();
}

void VirtualExecutor::drain_tenant(TenantSlot slot) {
  if (!check_slot(*plan_, slot).ok()) return;
  slot_drains_.try_emplace(slot).first->second.ordered(now_, plan_->settings.drain_max);
  for (GroupSlot& each : slots_)
    if (each.group && each.group->concerns(slot)) each.group->drain_tenant(slot, now_);
}

void VirtualExecutor::tenant_changed(GroupId group, const TenantChange& change, Status status) {
  const auto made = changes_.made(group, change, status);
  if (!made) return;
  if (made->status.ok()) remember(change);
  if (made->status.ok() && change.kind == TenantChange::Kind::kJoin) {
    // Another tenant than the one that had finished or failed in this slot.
    finished_[change.slot.index()] = false;
    set_aside_.erase(change.slot);
    num_abandoned_.erase(change.slot);
  }
  if (made->status.ok() && change.kind == TenantChange::Kind::kLeave) {
    finished_[change.slot.index()] = true;
    set_aside_.erase(change.slot);
    for (GroupSlot& slot : slots_)
      if (slot.group && counted_tenant(*plan_, slot.group->id()) == change.slot)
        slot.is_refusing = false;
  }
  if (options_.events.tenant_changed) options_.events.tenant_changed(made->change, made->status);
}

void VirtualExecutor::remember(const TenantChange& change) {
  auto& changes = history_[change.slot];
  const auto is_of = [&change](const TenantChange& each) { return each.tenancy == change.tenancy; };
  if (change.kind == TenantChange::Kind::kJoin && std::ranges::any_of(changes, is_of)) return;
  if (change.kind == TenantChange::Kind::kLeave) {
    const bool has_joined = std::ranges::any_of(changes, [&](const TenantChange& each) {
      return is_of(each) && each.kind == TenantChange::Kind::kJoin;
    });
    std::erase_if(changes, is_of);
    if (has_joined) return;  // the slot is as before it joined
  }
  // The newest one has all values.
  if (change.kind == TenantChange::Kind::kSet)
    std::erase_if(changes, [&](const TenantChange& each) { return each.kind == change.kind; });
  changes.push_back(change);
}

/// Before the other processes hear that it runs again: their messages may be of any tenant.
void VirtualExecutor::repeat_changes(ProcessId process) {
  for (const GroupId id : plan_->processes[process.index()].groups)
    for (const auto& [slot, changes] : history_)
      for (const TenantChange& change : changes) {
        if (!group(id).concerns(slot)) continue;
        group(id).change_tenant(change, now_);
        group(id).step(now_);  // control inputs come first
      }
  for (const GroupId id : plan_->processes[process.index()].groups)
    for (const TenantChange& change : changes_.left_for(id)) group(id).change_tenant(change, now_);
}

/// All groups are counted at one moment, so the second count finds what the first found. A process
/// that is dead has nothing of the slot; one that runs again has its drain from restart_process().
bool VirtualExecutor::look_for_drained() {
  bool has_drained = false;
  for (auto next = slot_drains_.begin(); next != slot_drains_.end();) {
    const TenantSlot slot = next->first;
    if (now_ >= next->second.deadline() && !std::exchange(next->second.is_late, true))
      for (GroupSlot& each : slots_)
        if (each.group && each.group->concerns(slot)) each.group->set_aside(slot, now_);
    bool is_over = true;
    for (const PlanProcess& process : plan_->processes) {
      std::vector<SlotCounts> counts;
      for (const GroupId id : process.groups)
        if (const auto& group = slots_[id.index()].group; group && group->concerns(slot))
          counts.push_back(group->slot_counts(slot));
      SlotDrain drain;
      (void)drain.is_over(counts);
      is_over = is_over && drain.is_over(counts);
    }
    if (!is_over) {
      ++next;
      continue;
    }
    next = slot_drains_.erase(next);
    has_drained = true;
    if (options_.events.tenant_drained) options_.events.tenant_drained(slot);
  }
  return has_drained;
}

}  // namespace primerl
