/// GroupTenants: the slots of a plan as one actor group sees them: which tenant has each, and which
/// are free. It begins with the tenants of the plan. A TenantChange changes it, at one position of
/// the group's steps; so a replay that makes the same steps sees the same tenants.
///
///   free -> join() -> in use (waits for its start) -> start -> pause <-> resume
///    ^                                                             |
///    +------------------------------ leave() ----------------------+
///
/// A change names slot and tenancy. One that is late or repeated changes nothing.
///
/// Owned by GroupCommon. Threads: the group's thread, between handlers. A handler reads the copy of
/// its Running, so one that runs apart or returns late sees no change.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "graph/plan.h"
#include "graph/tenant_change.h"
#include "runtime/exec/group_state.h"

namespace primerl {

/// The tenants of a group by slot; null for a free one.
using TenantsBySlot = std::vector<std::shared_ptr<const Tenant>>;

class GroupTenants {
 public:
  explicit GroupTenants(std::shared_ptr<const Plan> plan);

  size_t num_slots() const { return tenants_->size(); }
  /// False for "none" and for a slot that the plan does not have.
  bool is_free(TenantSlot slot) const {
    return !slot.is_none() && slot.index() < tenants_->size() &&
           (*tenants_)[slot.index()] == nullptr;
  }
  /// Whether an instance of the slot has no actor: the slot is free, or a client trains its tenant
  /// and the actor is a part of loops.
  bool is_vacant(TenantSlot slot, const Contract& contract) const {
    if (slot.is_none() || slot.index() >= tenants_->size()) return false;
    const Tenant* const tenant = (*tenants_)[slot.index()].get();
    return tenant == nullptr || (tenant->is_client && contract.is_for_loops);
  }
  const TenantsBySlot& by_slot() const { return *tenants_; }
  /// The same, as it is now: a change makes another one.
  std::shared_ptr<const TenantsBySlot> shared_by_slot() const { return tenants_; }
  /// Whether a slot has another tenant than the plan's, or values of one were set.
  bool differ_from_plan() const { return !joined_.empty() || !values_.empty(); }
  /// Copies of the tenants that are there, by slot.
  std::vector<Tenant> present() const;
  /// The tenant of a slot that is in use; else the slot's name in the plan.
  const std::string& name_of(TenantSlot slot) const;
  /// Whether the tenant is one of the plan's, so it may resume from a checkpoint of the run.
  bool is_planned(TenantSlot slot) const { return !joined_.contains(slot) && !is_free(slot); }
  /// Whether a failure of one tenant leaves the others alone: there are others, or there may be.
  bool are_apart() const { return plan_->layout_tenants() > 1 || plan_->num_slots() > 1; }

  /// Whether the change changes anything: its tenancy is the slot's, or a newer one for a join.
  /// kInvalid: a tenant joins a slot that another has, or the plan has no such slot.
  Result<bool> is_due(const TenantChange& change) const;
  /// The tenant of the slot of a kSet that is due, with the values of the change. kCorrupt: they
  /// cannot be read.
  Result<std::shared_ptr<const Tenant>> with_values(const TenantChange& change) const;
  /// Makes a change that is due. `tenant`: for kJoin, and of with_values() for kSet.
  void make(const TenantChange& change, std::shared_ptr<const Tenant> tenant);
  /// A join failed here: the slot is free as before, and its number counts as used.
  void undo_join(const TenantChange& change);
  /// Whether every process has made the tenant's actors. Until then they make no work call, because
  /// others may not know the tenant. True for free slots, "none" and the plan's tenants.
  bool has_started(TenantSlot slot) const;
  bool is_paused(TenantSlot slot) const;
  /// The changes that a new actor must hear of again: kJoin, kStart and kPause of each slot. Those
  /// of `only`, or of all slots if it is none.
  std::vector<TenantChange> changes_of(TenantSlot only) const;

  /// Slots whose tenants have values that were set.
  std::vector<TenantSlot> with_values() const;
  /// The tenant of a slot that is in use, without the values that were set.
  const Tenant& before_values(TenantSlot slot) const;

  /// Adds the slots in use, and those that were left.
  void save(GroupState& state) const;
  /// kCorrupt when the state names other slots than the plan. `joined` has a tenant for each of
  /// state.slots.
  Status restore(const GroupState& state, const TenantsBySlot& joined);

 private:
  void set(TenantSlot slot, std::shared_ptr<const Tenant> tenant);

  const std::shared_ptr<const Plan> plan_;
  /// Actors of the group share it: with thousands of slots each has as many.
  std::shared_ptr<const TenantsBySlot> tenants_;
  std::map<TenantSlot, SavedSlot> joined_;
  std::map<TenantSlot, uint32_t> left_;  // newest tenancy of free slots that were used
  std::set<TenantSlot> paused_;          // of the plan's tenants
  /// The text of values that were set, and the tenant without them.
  struct SetValues {
    std::string text;
    std::shared_ptr<const Tenant> before;
  };
  std::map<TenantSlot, SetValues> values_;
};

}  // namespace primerl
