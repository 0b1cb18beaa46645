/// GroupPool: the groups that may train, oldest first, and the rule that makes batches of them.
///
/// Plain data, no messages, no time. Order: (policy version, ordinal). A group without a version
/// (supervised data) never becomes stale.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages/rollout.h"
#include "graph/base/ids.h"

namespace primerl {

struct PooledGroup {
  TrajectoryGroup group;
  StepRef cause;      // the delivery that brought it
  InstanceId origin;  // the instance that gets its GroupEnded
  std::vector<RefusedMember> refused = {};

  template <class F>
  static void fields(F& f) {
    using P = PooledGroup;
    f("group", &P::group)("cause", &P::cause)("origin", &P::origin)("refused", &P::refused);
  }
};

class GroupPool {
 public:
  /// False if the pool has a group with this ordinal already; then nothing is added.
  [[nodiscard]] bool add(PooledGroup group);
  size_t size() const { return groups_.size(); }
  /// Removes and returns every group that batch `made` + 1 cannot use any more.
  std::vector<PooledGroup> take_stale(PolicyVersion made, int64_t max_off_policy_steps);
  /// Removes and returns the `count` oldest groups; the pool must have that many.
  std::vector<PooledGroup> take_oldest(size_t count);
  std::vector<PooledGroup> take_all();
  /// Whether a group is missing that a batch may wait for (a straggler): its ordinal is below the
  /// newest of the `count` oldest groups, it is neither `consumed` nor in the pool, and it could
  /// still train. Its version is at most that of the next ordinal in the pool, because groups open
  /// in ordinal order.
  template <class IsConsumed>
  bool has_straggler(size_t count, PolicyVersion made, int64_t max_off_policy_steps,
                     IsConsumed is_consumed) const;

  template <class F>
  static void fields(F& f) {
    f("groups", &GroupPool::groups_)("ordinals", &GroupPool::ordinals_);
  }

 private:
  using Key = std::pair<PolicyVersion, uint64_t>;
  std::map<Key, PooledGroup> groups_;
  std::map<uint64_t, PolicyVersion> ordinals_;  // of groups in the pool
};

template <class IsConsumed>
bool GroupPool::has_straggler(size_t count, PolicyVersion made, int64_t max_off_policy_steps,
                              IsConsumed is_consumed) const {
  if (groups_.size() < count) return false;
  uint64_t newest = 0;
  size_t seen = 0;
  for (const auto& [key, group] : groups_) {
    if (seen++ == count) break;
    newest = std::max(newest, key.second);
  }
  for (auto next = ordinals_.begin(); next != ordinals_.end() && next->first <= newest; ++next) {
    if (next->second.is_none() || made.value - next->second.value > max_off_policy_steps) continue;
    const uint64_t first = next == ordinals_.begin() ? 0 : std::prev(next)->first + 1;
    for (uint64_t ordinal = next->first; ordinal > first; --ordinal)
      if (!is_consumed(ordinal - 1)) return true;
  }
  return false;
}

}  // namespace primerl
