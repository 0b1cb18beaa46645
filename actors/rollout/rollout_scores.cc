// Rewards of groups for the curricula of environments.
#include <algorithm>

#include "actors/rollout/rollout.h"

namespace primerl {

/// At a moment when the bound of the edge has space: the answer counts as a rollout in flight.
void Rollout::send_scores() {
  const InstanceId giver = environments_.task_giver();
  if (scores_.empty() || is_draining_ || !scores_target_.is_none() || num_acted_ > 0) return;
  const auto targets = action_.targets(tenant_);
  if (std::ranges::find(targets, giver) == targets.end()) return;
  if (inflight() >= gate_limits().max_inflight) return;
  const auto count = static_cast<std::ptrdiff_t>(std::min(scores_.size(), kGroupsScoredMax));
  sent_scores_.assign(scores_.begin(), scores_.begin() + count);
  scores_.erase(scores_.begin(), scores_.begin() + count);
  scores_target_ = giver;
  Action action;
  action.trajectory = kScoresTrajectory;
  action.turn = kBringsScores;
  action.scored = sent_scores_;
  auto options = send_options();
  options.target = giver;
  ++num_acted_;
  action_.send(std::move(action), options);
}

}  // namespace primerl
