#include "actors/rollout/gate.h"

#include <algorithm>

namespace primerl {
int64_t GateLimits::depth_min() const {
  return (1 + std::min<int64_t>(1, max_off_policy_steps)) * groups_per_batch;
}

int64_t GateLimits::depth_max() const { return (1 + max_off_policy_steps) * groups_per_batch; }

GateAnswer ask_gate(const GateLimits& limits, const GateCounts& counts, int64_t depth,
                    PolicyVersion live) {
  if (live.is_none()) return GateAnswer::kNoPolicy;
  const int64_t lead = limits.max_off_policy_steps;
  const int64_t groups = limits.groups_per_batch;
  const int64_t open = counts.opened - counts.lost;
  if (open >= (live.value + 1 + lead) * groups) return GateAnswer::kOpenedLimit;
  if (open >= live.value * groups + depth) return GateAnswer::kPaced;
  if (counts.inflight + limits.group_size > limits.max_inflight) return GateAnswer::kInflightLimit;
  return GateAnswer::kOpen;
}

int64_t staleness(PolicyVersion made, PolicyVersion opened_under) {
  return made.value - 1 - opened_under.value;
}

bool can_train(PolicyVersion latest, PolicyVersion opened_under, int64_t max_off_policy_steps) {
  return staleness(latest.next(), opened_under) <= max_off_policy_steps;
}

}  // namespace primerl
