#include "actors/trainer/batch.h"

#include <algorithm>
#include <cmath>

#include "actors/rollout/gate.h"
#include "kernels/train/advantage.h"

namespace primerl {
namespace {

void fail_member(Trajectory& member, std::string fault) {
  member.is_failed = true;
  member.fault = std::move(fault);
}

std::vector<double> rewards_of(const TrajectoryGroup& group) {
  std::vector<double> rewards;
  for (const auto& member : group.members)
    if (!member.is_failed) rewards.push_back(member.reward);
  return rewards;
}

}  // namespace

void fail_broken_members(TrajectoryGroup& group) {
  for (auto& member : group.members) {
    if (member.is_failed) continue;
    const size_t size = member.tokens.size();
    if (!std::isfinite(member.reward))
      fail_member(member, fmt::format("the reward {} is not finite", member.reward));
    else if (size == 0 || member.sampled.size() != size)
      fail_member(member, "its arrays are not parallel");
    else if (!group.version.is_none() && member.logprobs.size() != size)
      fail_member(member, "its log-probabilities are not parallel to its tokens");
  }
}

std::optional<Verdict> judge(const TrajectoryGroup& group, const Tenant& tenant, LossKind loss) {
  const auto rewards = rewards_of(group);
  const size_t needed = loss == LossKind::kCrossEntropy ? 1 : 2;
  if (rewards.size() < needed) {
    std::string first;
    for (const auto& member : group.members)
      if (first.empty() && member.is_failed) first = member.fault;
    return Verdict{
        RolloutEnd::kFailed,
        fmt::format("{} of {} members survived, {} are needed; the first fault: {}", rewards.size(),
                    group.members.size(), needed, first.empty() ? "none" : first)};
  }
  if (loss == LossKind::kDppo && tenant.filters.zero_advantage &&
      std::all_of(rewards.begin(), rewards.end(),
                  [&](double reward) { return reward == rewards.front(); }))
    return Verdict{RolloutEnd::kFiltered, "zero_advantage: all rewards are equal"};
  return std::nullopt;
}

Result<TrainBatch> make_batch(const std::vector<PooledGroup>& groups, const Tenant& tenant,
                              LossKind loss) {
  TrainBatch batch;
  batch.tenant = tenant.slot;
  batch.loss = loss;
  for (const auto& [group, cause, origin] : groups) {
    const auto rewards = rewards_of(group);
    std::vector<float> advantages;
    if (loss == LossKind::kDppo) {
      ASSIGN_OR_RETURN(advantages, group_advantages(rewards));
    }
    size_t survivor = 0;
    for (const auto& member : group.members) {
      if (member.is_failed) continue;
      TrainSample sample;
      sample.tokens = member.tokens;
      sample.loss_mask = member.sampled;
      if (loss == LossKind::kDppo) {
        sample.logprobs = member.logprobs;
        sample.advantages.assign(member.tokens.size(), advantages[survivor]);
        // Greedy sampling reports log-probabilities at temperature 1.
        if (tenant.sampling.temperature > 0)
          sample.temperature = static_cast<float>(tenant.sampling.temperature);
      }
      ++survivor;
      batch.samples.push_back(std::move(sample));
    }
  }
  return batch;
}

void RewardTotals::add(double reward) {
  min = count == 0 ? reward : std::min(min, reward);
  max = count == 0 ? reward : std::max(max, reward);
  sum += reward;
  ++count;
}

void RewardTotals::add(const TrajectoryGroup& group) {
  ++num_groups;
  for (const double reward : rewards_of(group)) add(reward);
}

MetricValues batch_metrics(const std::vector<PooledGroup>& groups, const RewardTotals& filtered,
                           PolicyVersion version) {
  RewardTotals all = filtered, trained;
  double staleness_sum = 0, length_sum = 0;
  int64_t staleness_max = 0, length_max = 0, num_truncated = 0, num_failed = 0;
  for (const auto& pooled : groups) {
    const PolicyVersion opened = pooled.group.version;
    const int64_t age = opened.is_none() ? 0 : staleness(version, opened);
    all.add(pooled.group);
    trained.add(pooled.group);
    for (const auto& member : pooled.group.members) {
      num_failed += member.is_failed;
      if (member.is_failed) continue;
      staleness_sum += static_cast<double>(age);
      staleness_max = std::max(staleness_max, age);
      length_sum += static_cast<double>(member.tokens.size());
      length_max = std::max(length_max, static_cast<int64_t>(member.tokens.size()));
      num_truncated += member.is_truncated;
    }
  }
  const double samples = static_cast<double>(std::max<int64_t>(trained.count, 1));
  return {
      {"reward/all/mean", all.mean()},
      {"reward/all/min", all.min},
      {"reward/all/max", all.max},
      {"reward/trained/mean", trained.mean()},
      {"off_policy/mean", staleness_sum / samples},
      {"off_policy/max", static_cast<double>(staleness_max)},
      {"seq_len/all/mean", length_sum / samples},
      {"seq_len/all/max", static_cast<double>(length_max)},
      {"is_truncated/all/mean", static_cast<double>(num_truncated) / samples},
      {"progress/samples", static_cast<double>(trained.count)},
      {"progress/samples_failed", static_cast<double>(num_failed)},
      {"progress/groups_filtered", static_cast<double>(filtered.num_groups)},
  };
}

int64_t num_sampled_tokens(const TrajectoryGroup& group) {
  int64_t count = 0;
  for (const auto& member : group.members)
    count += std::count(member.sampled.begin(), member.sampled.end(), 1);
  return count;
}

}  // namespace primerl
