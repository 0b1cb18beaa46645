#include "runtime/exec/group_tenants.h"

#include <utility>

#include "graph/tenant_values.h"

namespace primerl {

GroupTenants::GroupTenants(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {
  auto tenants = std::make_shared<TenantsBySlot>(plan_->num_slots());
  for (size_t i = 0; i < plan_->tenants.size(); ++i)
    (*tenants)[i] = std::shared_ptr<const Tenant>(plan_, &plan_->tenants[i]);
  tenants_ = std::move(tenants);
}

void GroupTenants::set(TenantSlot slot, std::shared_ptr<const Tenant> tenant) {
  auto changed = std::make_shared<TenantsBySlot>(*tenants_);
  (*changed)[slot.index()] = std::move(tenant);
  tenants_ = std::move(changed);
}

std::vector<Tenant> GroupTenants::present() const {
  std::vector<Tenant> present;
  for (const auto& tenant : *tenants_)
    if (tenant != nullptr) present.push_back(*tenant);
  return present;
}

const std::string& GroupTenants::name_of(TenantSlot slot) const {
  return is_free(slot) ? plan_->in_slot(slot).name : (*tenants_)[slot.index()]->name;
}

Result<bool> GroupTenants::is_due(const TenantChange& change) const {
  if (change.slot.is_none() || change.slot.index() >= tenants_->size())
    return error(Code::kInvalid, "tenant slot {} does not exist, the graph has {}",
                 change.slot.value, tenants_->size());
  const auto& present = (*tenants_)[change.slot.index()];
  if (change.kind != TenantChange::Kind::kJoin)
    return present != nullptr && present->tenancy == change.tenancy;
  if (present == nullptr) {
    const auto last = left_.find(change.slot);
    return last == left_.end() || change.tenancy > last->second;
  }
  if (change.tenancy <= present->tenancy) return false;
  return error(Code::kInvalid, "tenant '{}' cannot join slot {}, which tenant '{}' has",
               change.name, change.slot.value, present->name)
      .note("the slot is free after kLeave");
}

Result<std::shared_ptr<const Tenant>> GroupTenants::with_values(const TenantChange& change) const {
  ASSIGN_OR_RETURN(const TenantValues values, TenantValues::read(change.table));
  const auto found = values_.find(change.slot);
  return values.applied_to(found == values_.end() ? (*tenants_)[change.slot.index()]
                                                  : found->second.before);
}

std::vector<TenantSlot> GroupTenants::with_values() const {
  std::vector<TenantSlot> slots;
  for (const auto& [slot, values] : values_) slots.push_back(slot);
  return slots;
}

const Tenant& GroupTenants::before_values(TenantSlot slot) const {
  const auto found = values_.find(slot);
  return found == values_.end() ? *(*tenants_)[slot.index()] : *found->second.before;
}

void GroupTenants::make(const TenantChange& change, std::shared_ptr<const Tenant> tenant) {
  const TenantSlot slot = change.slot;
  const auto joined = joined_.find(slot);
  switch (change.kind) {
    case TenantChange::Kind::kJoin:
      CHECK(tenant != nullptr && tenant->slot == slot, "a tenant joined another slot");
      set(slot, std::move(tenant));
      joined_[slot] = {slot,  change.tenancy, change.name,     change.table,
                       false, false,          change.begins_at};
      left_.erase(slot);
      values_.erase(slot);
      return;
    case TenantChange::Kind::kStart:
      if (joined != joined_.end()) joined->second.has_started = true;
      return;
    case TenantChange::Kind::kPause:
    case TenantChange::Kind::kResume: {
      const bool is_paused = change.kind == TenantChange::Kind::kPause;
      if (joined != joined_.end())
        joined->second.is_paused = is_paused;
      else if (is_paused)
        paused_.insert(slot);
      else
        paused_.erase(slot);
      return;
    }
    case TenantChange::Kind::kLeave:
      set(slot, nullptr);
      joined_.erase(slot);
      paused_.erase(slot);
      values_.erase(slot);
      left_[slot] = change.tenancy;
      return;
    case TenantChange::Kind::kSet:
      CHECK(tenant != nullptr && tenant->slot == slot, "values were set for another slot");
      // The text has all values, so the first tenant is enough for the next one.
      values_.try_emplace(slot, SetValues{"", (*tenants_)[slot.index()]}).first->second.text =
          change.table;
      set(slot, std::move(tenant));
      return;
  }
}

void GroupTenants::undo_join(const TenantChange& change) {
  set(change.slot, nullptr);
  joined_.erase(change.slot);
  left_[change.slot] = change.tenancy;
}

bool GroupTenants::has_started(TenantSlot slot) const {
  const auto joined = joined_.find(slot);
  return joined == joined_.end() || joined->second.has_started;
}

bool GroupTenants::is_paused(TenantSlot slot) const {
  const auto joined = joined_.find(slot);
  return joined == joined_.end() ? paused_.contains(slot) : joined->second.is_paused;
}

std::vector<TenantChange> GroupTenants::changes_of(TenantSlot only) const {
  std::vector<TenantChange> changes;
  for (const auto& tenant : *tenants_) {
    if (tenant == nullptr || (!only.is_none() && tenant->slot != only)) continue;
    const auto add = [&](TenantChange::Kind kind) {
      changes.push_back({kind, tenant->slot, tenant->tenancy, tenant->name, {}});
    };
    const bool has_joined = joined_.contains(tenant->slot);
    if (has_joined) add(TenantChange::Kind::kJoin);
    if (has_joined && has_started(tenant->slot)) add(TenantChange::Kind::kStart);
    if (is_paused(tenant->slot)) add(TenantChange::Kind::kPause);
  }
  return changes;
}

void GroupTenants::save(GroupState& state) const {
  for (const auto& [slot, saved] : joined_) state.slots.push_back(saved);
  state.left = left_;
  state.paused = paused_;
  for (const auto& [slot, values] : values_) state.values[slot] = values.text;
}

Status GroupTenants::restore(const GroupState& state, const TenantsBySlot& joined) {
  const auto is_there = [this](TenantSlot slot) {
    return !slot.is_none() && slot.index() < tenants_->size();
  };
  for (const auto& [slot, tenancy] : state.left) {
    if (!is_there(slot)) return error(Code::kCorrupt, "a saved state names slot {}", slot.value);
    set(slot, nullptr);
  }
  joined_.clear();
  for (size_t i = 0; i < state.slots.size(); ++i) {
    const TenantSlot slot = state.slots[i].slot;
    if (!is_there(slot)) return error(Code::kCorrupt, "a saved state names slot {}", slot.value);
    set(slot, joined[i]);
    joined_[slot] = state.slots[i];
  }
  left_ = state.left;
  paused_ = state.paused;
  // Values that were set before the state count no more.
  for (const auto& [slot, values] : std::exchange(values_, {}))
    if (const auto& present = (*tenants_)[slot.index()];
        present != nullptr && present->tenancy == values.before->tenancy && !joined_.contains(slot))
      set(slot, values.before);
  for (const auto& [slot, text] : state.values) {
    if (!is_there(slot) || (*tenants_)[slot.index()] == nullptr)
      return error(Code::kCorrupt, "a saved state has values for slot {}", slot.value);
    const Tenant& tenant = *(*tenants_)[slot.index()];
    const TenantChange change = {TenantChange::Kind::kSet, slot, tenant.tenancy, tenant.name, text};
    ASSIGN_OR_RETURN(auto changed, with_values(change));
    make(change, std::move(changed));
  }
  return ok();
}

}  // namespace primerl
