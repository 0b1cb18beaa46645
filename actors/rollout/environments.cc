#include "actors/rollout/environments.h"

#include <utility>

namespace primerl {

InstanceId Environments::choose(std::span<const InstanceId> targets) const {
  InstanceId best;
  int64_t fewest = 0;
  for (const InstanceId target : targets) {
    if (target == task_giver_ && targets.size() > 1) continue;
    const auto found = served_.find(target);
    const int64_t count = found == served_.end() ? 0 : found->second.num_trajectories;
    if (!best.is_none() && count >= fewest) continue;
    best = target;
    fewest = count;
  }
  return best;
}

void Environments::end(InstanceId environment) {
  const auto found = served_.find(environment);
  if (found != served_.end() && found->second.num_trajectories > 0)
    --found->second.num_trajectories;
}

void Environments::report_ended(InstanceId environment, uint64_t trajectory) {
  auto& ended = served_[environment].ended;
  if (ended.size() == kEndedTrajectoriesMax) ended.erase(ended.begin());
  ended.push_back(trajectory);
}

std::vector<uint64_t> Environments::take_ended(InstanceId environment) {
  const auto found = served_.find(environment);
  if (found == served_.end()) return {};
  return std::exchange(found->second.ended, {});
}

}  // namespace primerl
