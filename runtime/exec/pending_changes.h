/// PendingChanges: changes of tenants that were given to the groups of a process, until each group
/// has made its step. Shared by both executors. Not thread-safe.
#pragma once

#include <deque>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "runtime/exec/executor.h"

namespace primerl {

/// A change that all groups have made, with the first error of one.
struct MadeChange {
  TenantChange change;
  Status status;
};

class PendingChanges {
 public:
  /// kExhausted: kTenantChangesMax changes wait. `groups` must not be empty.
  Status add(const TenantChange& change, std::set<GroupId> groups);
  /// The group has made the change, or it ended without. Returns the change if it was the last
  /// group; groups make equal changes in the order in which they were added.
  std::optional<MadeChange> made(GroupId group, const TenantChange& change, const Status& status);
  /// The changes that the group has not made yet, oldest first: one that was made anew gets them
  /// again.
  std::vector<TenantChange> left_for(GroupId group) const;
  size_t size() const { return waiting_.size(); }

 private:
  struct Waiting {
    MadeChange made;
    std::set<GroupId> groups;  // that have not made it yet
  };
  std::deque<Waiting> waiting_;  // oldest first
};

}  // namespace primerl
