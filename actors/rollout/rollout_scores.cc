// Rewards of groups for the curricula of environments.
#include <algorithm>
#include <limits>

#include "actors/rollout/rollout.h"

namespace primerl {
namespace {

bool has_curriculum(const Tenant& tenant) {
  for (size_t i = 0; i < tenant.num_environments(); ++i)
    if (tenant.in_environment(i).curriculum.is_on()) return true;
  return false;
}

}  // namespace

/// The instance that gives tasks gives only a few ahead of a curriculum, and looks for space when
/// it is called. Groups that failed before their first action have not called it, nor have those
/// that other replicas played. So each group is reported: after a few that were not, the run would
/// wait for a task for ever.
void Rollout::add_score(const Group& group, std::optional<double> reward) {
  if (is_evaluation(group.ordinal)) return;
  if (!reward && !has_curriculum(tenant())) return;
  scores_.push_back({group.source, reward.value_or(std::numeric_limits<double>::quiet_NaN())});
}

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
