#include "actors/trainer/batch.h"

#include <algorithm>
#include <cmath>

#include "actors/common/group_bytes.h"
#include "actors/rollout/gate.h"
#include "kernels/engine/kept_sets.h"
#include "kernels/train/advantage.h"
#include "kernels/train/packing.h"

namespace primerl {
namespace {

/// The member as the loss needs it, with one advantage for all its tokens.
TrainSample sample_of(const Trajectory& member, float advantage, const Tenant& tenant,
                      LossKind loss) {
  TrainSample sample;
  sample.tokens = member.tokens;
  sample.loss_mask = member.sampled;
  if (loss != LossKind::kDppo) return sample;
  sample.logprobs = member.logprobs;
  sample.kept = member.kept;
  sample.advantages.assign(member.tokens.size(), advantage);
  // Greedy sampling reports log-probabilities at temperature 1.
  if (tenant.sampling.temperature > 0)
    sample.temperature = static_cast<float>(tenant.sampling.temperature);
  return sample;
}

Status check_member(const Trajectory& member, const Tenant& tenant, LossKind loss,
                    const SampleLimits& limits) {
  if (!(std::abs(member.reward) <= kRewardMax))
    return error(Code::kInvalid, "the reward {} is not in [{}, {}]", member.reward, -kRewardMax,
                 kRewardMax);
  const TenantSampling& sampling = tenant.sampling;
  const bool has_kept =
      has_kept_sets(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p);
  if (loss == LossKind::kDppo && member.kept.empty() == has_kept)
    return error(
        Code::kInvalid, "{}",
        has_kept ? "its kept sets are missing" : "it has kept sets that were not requested");
  const TrainSample sample = sample_of(member, 0, tenant, loss);
  RETURN_IF_ERROR(check_sample(sample, loss, limits));
  // The first token has no prediction.
  if (std::count(sample.loss_mask.begin() + 1, sample.loss_mask.end(), 1) == 0)
    return error(Code::kInvalid, "none of its {} tokens can train", sample.tokens.size());
  return ok();
}

std::vector<double> rewards_of(const TrajectoryGroup& group) {
  std::vector<double> rewards;
  for (const auto& member : group.members)
    if (!member.is_failed) rewards.push_back(member.reward);
  return rewards;
}

}  // namespace

std::vector<RefusedMember> refuse_members(TrajectoryGroup& group, const Tenant& tenant,
                                          LossKind loss, const SampleLimits& limits) {
  std::vector<RefusedMember> refused;
  for (size_t i = 0; i < group.members.size(); ++i) {
    Trajectory& member = group.members[i];
    if (member.is_failed) continue;
    const Status checked = check_member(member, tenant, loss, limits);
    if (checked.ok()) continue;
    member.is_failed = true;
    member.fault = clipped_fault(checked.error().text());
    refused.push_back({static_cast<uint32_t>(i), member.fault});
  }
  return refused;
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
  for (const auto& pooled : groups) {
    const TrajectoryGroup& group = pooled.group;
    const auto rewards = rewards_of(group);
    std::vector<float> advantages;
    if (loss == LossKind::kDppo) {
      ASSIGN_OR_RETURN(advantages, group_advantages(rewards));
    }
    size_t survivor = 0;
    for (const auto& member : group.members) {
      if (member.is_failed) continue;
      const float advantage = advantages.empty() ? 0.0F : advantages[survivor++];
      batch.samples.push_back(sample_of(member, advantage, tenant, loss));
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

/// The mean score of each reward of the tenant over the members that trained.
MetricValues score_means(const std::vector<PooledGroup>& groups, const Tenant& tenant) {
  MetricValues means;
  for (size_t reward = 0; reward < tenant.rewards.size(); ++reward) {
    double sum = 0;
    int64_t count = 0;
    for (const auto& pooled : groups)
      for (const auto& member : pooled.group.members) {
        if (member.is_failed || reward >= member.scores.size()) continue;
        sum += member.scores[reward];
        ++count;
      }
    if (count > 0)
      means.emplace_back(fmt::format("reward/{}/mean", tenant.rewards[reward].label),
                         sum / static_cast<double>(count));
  }
  return means;
}

MetricValues batch_metrics(const std::vector<PooledGroup>& groups, const RewardTotals& filtered,
                           PolicyVersion version, const Tenant& tenant) {
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
  MetricValues metrics = {
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
  for (auto& mean : score_means(groups, tenant)) metrics.push_back(std::move(mean));
  return metrics;
}

void LossReasons::add(RolloutEnd end, const std::string& reason) {
  std::string first = fmt::format("{}: {}", to_string(end), reason);
  std::string key = first;
  std::erase_if(key, [](char c) { return c >= '0' && c <= '9'; });
  if (told_.size() >= kReasonsMax && !told_.contains(key)) return;
  Told& told = told_[std::move(key)];
  if (++told.count == 1) told.first = std::move(first);
}

std::string LossReasons::most_frequent() const {
  const auto most = std::max_element(told_.begin(), told_.end(), [](const auto& a, const auto& b) {
    return a.second.count < b.second.count;
  });
  if (most == told_.end()) return "";
  return fmt::format("{} of them as {}", most->second.count, most->second.first);
}

int64_t num_sampled_tokens(const TrajectoryGroup& group) {
  int64_t count = 0;
  for (const auto& member : group.members)
    count += std::count(member.sampled.begin(), member.sampled.end(), 1);
  return count;
}

}  // namespace primerl
