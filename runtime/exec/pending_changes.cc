#include "runtime/exec/pending_changes.h"

#include <algorithm>

namespace primerl {

Status PendingChanges::add(const TenantChange& change, std::set<GroupId> groups) {
  CHECK(!groups.empty(), "a change of a tenant concerns no group");
  if (waiting_.size() >= kTenantChangesMax)
    return error(Code::kExhausted,
                 "{} changes of tenants wait already, {} of tenant '{}' must wait", waiting_.size(),
                 to_string(change.kind), change.name)
        .note("the groups of this process have not made them yet");
  waiting_.push_back({{change, ok()}, std::move(groups)});
  return ok();
}

std::optional<MadeChange> PendingChanges::made(GroupId group, const TenantChange& change,
                                               const Status& status) {
  const auto found = std::ranges::find_if(waiting_, [&](const Waiting& each) {
    return each.made.change == change && each.groups.contains(group);
  });
  if (found == waiting_.end()) return std::nullopt;
  if (found->made.status.ok()) found->made.status = status;
  found->groups.erase(group);
  if (!found->groups.empty()) return std::nullopt;
  MadeChange made = std::move(found->made);
  waiting_.erase(found);
  return made;
}

std::vector<TenantChange> PendingChanges::left_for(GroupId group) const {
  std::vector<TenantChange> changes;
  for (const Waiting& each : waiting_)
    if (each.groups.contains(group)) changes.push_back(each.made.change);
  return changes;
}

}  // namespace primerl
