#include "actors/trainer/group_pool.h"

#include "actors/rollout/gate.h"

namespace primerl {

bool GroupPool::add(PooledGroup group) {
  const Key key{group.group.version, group.group.ordinal};
  if (!ordinals_.emplace(key.second, key.first).second) return false;
  groups_.emplace(key, std::move(group));
  return true;
}

std::vector<PooledGroup> GroupPool::take_stale(PolicyVersion made, int64_t max_off_policy_steps) {
  std::vector<PooledGroup> stale;
  for (auto it = groups_.begin(); it != groups_.end();) {
    const PolicyVersion version = it->first.first;
    if (version.is_none() || can_train(made, version, max_off_policy_steps)) {
      ++it;
      continue;
    }
    ordinals_.erase(it->first.second);
    stale.push_back(std::move(it->second));
    it = groups_.erase(it);
  }
  return stale;
}

std::vector<PooledGroup> GroupPool::take_oldest(size_t count) {
  CHECK(count <= groups_.size(), "a batch takes more groups than there are");
  std::vector<PooledGroup> oldest;
  for (size_t i = 0; i < count; ++i) {
    const auto first = groups_.begin();
    ordinals_.erase(first->first.second);
    oldest.push_back(std::move(first->second));
    groups_.erase(first);
  }
  return oldest;
}

std::vector<PooledGroup> GroupPool::take_all() { return take_oldest(groups_.size()); }

}  // namespace primerl
