#include "actors/trainer/batch.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "actors/common/group_bytes.h"
#include "actors/rollout/evaluation.h"
#include "actors/rollout/gate.h"
#include "graph/base/histogram.h"
#include "kernels/engine/kept_sets.h"
#include "kernels/train/advantage.h"
#include "kernels/train/packing.h"

namespace primerl {
namespace {

/// The beginnings of a member's samples rise and are inside its arrays, which have equal lengths.
Status check_samples_of(const Trajectory& member, LossKind loss) {
  const size_t length = member.tokens.size();
  const bool has_logprobs =
      loss == LossKind::kPolicy || (loss == LossKind::kTopK && !member.logprobs.empty());
  if (member.sampled.size() != length || (has_logprobs && member.logprobs.size() != length))
    return error(Code::kInvalid, "{} tokens in {} samples, but {} sampled and {} logprobs", length,
                 member.num_samples(), member.sampled.size(), member.logprobs.size());
  for (const auto* array : {&member.reference, &member.weights})
    if (!array->empty() && array->size() != length)
      return error(Code::kInvalid, "{} tokens, but {} {}", length, array->size(),
                   array == &member.weights ? "weights" : "log-probabilities of the teacher");
  int64_t last = 0;
  for (const int32_t begin : member.sample_begins) {
    if (begin <= last || std::cmp_greater_equal(begin, length))
      return error(Code::kInvalid, "a sample begins at {}, not in [{}, {}]", begin, last + 1,
                   static_cast<int64_t>(length) - 1);
    last = begin;
  }
  return ok();
}

/// The bytes of `kept` that belong to the next `count` sampled tokens.
Result<Blob> next_kept(const Blob& kept, KeptReader& reader, int64_t count) {
  const size_t begin = kept.size() - reader.num_bytes_left();
  for (int64_t i = 0; i < count; ++i) RETURN_IF_ERROR(reader.next());
  const auto bytes = kept.bytes().subspan(begin, kept.size() - reader.num_bytes_left() - begin);
  return Blob(std::make_shared<Blob>(kept), bytes);
}

/// The top tokens of the next `count` sampled tokens; `begin` moves behind them.
void cut_top(const Trajectory& member, size_t count, size_t k, size_t& begin, TrainSample& sample) {
  const size_t end = begin + count * k;
  const auto cut = [&](const auto& all, auto& part) {
    part.assign(all.begin() + std::ptrdiff_t(begin), all.begin() + std::ptrdiff_t(end));
  };
  cut(member.top_tokens, sample.top_tokens);
  cut(member.top_logprobs, sample.top_logprobs);
  begin = end;
}

/// The top tokens that a tenant's teacher gives, or none.
Status check_top_tokens(const Trajectory& member, const Tenant& tenant) {
  const auto wanted = static_cast<int64_t>(tenant.teacher.top_k) *
                      std::count(member.sampled.begin(), member.sampled.end(), 1);
  if (std::cmp_equal(member.top_tokens.size(), wanted) &&
      std::cmp_equal(member.top_logprobs.size(), wanted))
    return ok();
  return error(Code::kInvalid,
               "it has {} top tokens and {} top log-probabilities of the teacher, not {}",
               member.top_tokens.size(), member.top_logprobs.size(), wanted);
}

/// The versions from each sampled token to `version`; -1 for other tokens.
std::vector<int32_t> distances_of(const Trajectory& member, PolicyVersion version) {
  std::vector<int32_t> distances(member.tokens.size(), -1);
  for (const VersionSpan& span : member.spans) {
    if (span.version.is_none()) continue;
    const int64_t distance = std::max<int64_t>(version.value - span.version.value, 0);
    const auto end = std::min(static_cast<size_t>(std::max(span.end, 0)), distances.size());
    for (auto i = static_cast<size_t>(std::max(span.begin, 0)); i < end; ++i)
      distances[i] = static_cast<int32_t>(std::min<int64_t>(distance, INT32_MAX));
  }
  return distances;
}

/// The member's samples as the loss needs them, with one advantage for all their tokens: the loss
/// is the mean over the tokens of a batch, so a sampled token counts the same in any sample.
Result<std::vector<TrainSample>> samples_of(const Trajectory& member, float advantage,
                                            const Tenant& tenant, LossKind loss,
                                            PolicyVersion version = {}) {
  std::vector<TrainSample> samples(member.num_samples());
  // The learner checks the arrays of a single sample.
  if (samples.size() > 1) RETURN_IF_ERROR(check_samples_of(member, loss));
  KeptReader reader(member.kept.bytes());
  std::vector<int32_t> distances;
  if (loss == LossKind::kPolicy && !version.is_none()) distances = distances_of(member, version);
  size_t top_begin = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    TrainSample& sample = samples[i];
    const auto [begin, end] = member.sample(i);
    const auto cut = [&, first = begin, last = end](const auto& all, auto& part) {
      if (all.empty()) return;
      part.assign(samples.size() == 1 ? all.begin() : all.begin() + std::ptrdiff_t(first),
                  samples.size() == 1 ? all.end() : all.begin() + std::ptrdiff_t(last));
    };
    cut(member.tokens, sample.tokens);
    cut(member.sampled, sample.loss_mask);
    cut(member.weights, sample.weights);
    if (loss == LossKind::kCrossEntropy) continue;
    cut(member.logprobs, sample.logprobs);
    if (loss == LossKind::kTopK) {
      const auto count = std::count(sample.loss_mask.begin(), sample.loss_mask.end(), 1);
      cut_top(member, static_cast<size_t>(count), static_cast<size_t>(tenant.teacher.top_k),
              top_begin, sample);
      continue;
    }
    cut(member.reference, sample.reference);
    if (!distances.empty()) cut(distances, sample.distances);
    sample.kept = member.kept;
    if (samples.size() > 1 && !member.kept.empty()) {
      const auto count = std::count(sample.loss_mask.begin(), sample.loss_mask.end(), 1);
      ASSIGN_OR_RETURN(sample.kept, next_kept(member.kept, reader, count));
    }
    sample.advantages.assign(sample.tokens.size(), advantage);
    // Greedy sampling reports log-probabilities at temperature 1.
    if (tenant.sampling.temperature > 0)
      sample.temperature = static_cast<float>(tenant.sampling.temperature);
  }
  if (samples.size() > 1 && loss == LossKind::kPolicy && !reader.is_at_end())
    return error(Code::kInvalid, "{} bytes of kept sets are after those of its sampled tokens",
                 reader.num_bytes_left());
  return samples;
}

Status check_member(const Trajectory& member, const Tenant& tenant, const RolloutUse& use,
                    const SampleLimits& limits) {
  if (!(std::abs(member.reward) <= kRewardMax))
    return error(Code::kInvalid, "the reward {} is not in [{}, {}]", member.reward, -kRewardMax,
                 kRewardMax);
  const TenantSampling& sampling = tenant.sampling;
  const bool has_kept =
      has_kept_sets(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p);
  if (use.is_of_rollouts() && member.kept.empty() == has_kept)
    return error(
        Code::kInvalid, "{}",
        has_kept ? "its kept sets are missing" : "it has kept sets that were not requested");
  if (!member.fault.empty()) return error(Code::kInvalid, "{}", member.fault);
  if (use.is_of_rollouts() && member.reference.empty() == tenant.teacher.is_there())
    return error(Code::kInvalid, "{}",
                 tenant.teacher.is_there()
                     ? "it has no log-probabilities of the teacher"
                     : "it has log-probabilities of a teacher that were not requested");
  RETURN_IF_ERROR(check_top_tokens(member, tenant));
  if (std::string fault = fault_of_filters(member, tenant, limits.vocab_size); !fault.empty())
    return error(Code::kInvalid, "{}", fault);
  ASSIGN_OR_RETURN(const auto samples, samples_of(member, 0, tenant, use.data));
  int64_t num_trained = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const Status checked = check_sample(samples[i], use.data, limits);
    if (!checked.ok() && samples.size() == 1) return checked;
    if (!checked.ok()) return Error(checked.error()).while_doing(fmt::format("sample {}", i));
    const auto& mask = samples[i].loss_mask;
    num_trained += std::count(mask.begin() + 1, mask.end(), 1);  // the first has no prediction
  }
  if (num_trained == 0)
    return error(Code::kInvalid, "none of its {} tokens can train", member.tokens.size());
  return ok();
}

std::vector<double> rewards_of(const TrajectoryGroup& group) {
  std::vector<double> rewards;
  for (const auto& member : group.members)
    if (!member.is_failed) rewards.push_back(member.reward);
  return rewards;
}

/// The rewards that advantages compare: less what long answers cost.
std::vector<double> compared_rewards(const TrajectoryGroup& group, const Tenant& tenant) {
  const auto rewards = rewards_of(group);
  const TenantAdvantage& own = tenant.advantage;
  if (own.length_weight <= 0 && own.overlong_to <= 0) return rewards;
  std::vector<int64_t> lengths;
  for (const auto& member : group.members)
    if (!member.is_failed)
      lengths.push_back(std::count(member.sampled.begin(), member.sampled.end(), 1));
  return with_length_costs(rewards, lengths,
                           {.weight = own.length_weight,
                            .overlong_from = own.overlong_from,
                            .overlong_to = own.overlong_to});
}

/// The advantages of the members that did not fail, of all groups one after the other.
Result<std::vector<float>> advantages_of(const std::vector<PooledGroup>& groups,
                                         const Tenant& tenant, std::span<const RolloutUse> uses) {
  std::map<uint32_t, std::vector<double>> of_batch;  // rewards by environment
  for (const auto& pooled : groups) {
    const uint32_t environment = pooled.group.source.environment;
    if (uses[environment].advantage != AdvantageKind::kBatch) continue;
    const auto rewards = compared_rewards(pooled.group, tenant.in_environment(environment));
    auto& all = of_batch[environment];
    all.insert(all.end(), rewards.begin(), rewards.end());
  }
  std::map<uint32_t, std::vector<float>> compared;
  std::map<uint32_t, size_t> next;
  for (const auto& [environment, rewards] : of_batch) {
    ASSIGN_OR_RETURN(compared[environment], group_advantages(rewards, AdvantageKind::kBatch));
  }
  std::vector<float> all;
  for (const auto& pooled : groups) {
    const uint32_t environment = pooled.group.source.environment;
    const auto rewards = compared_rewards(pooled.group, tenant.in_environment(environment));
    if (uses[environment].advantage == AdvantageKind::kBatch) {
      const auto begin = compared[environment].begin() + std::ptrdiff_t(next[environment]);
      all.insert(all.end(), begin, begin + std::ssize(rewards));
      next[environment] += rewards.size();
      continue;
    }
    ASSIGN_OR_RETURN(const auto advantages, group_advantages(rewards, uses[environment].advantage));
    all.insert(all.end(), advantages.begin(), advantages.end());
  }
  return all;
}

}  // namespace

std::vector<RefusedMember> refuse_members(TrajectoryGroup& group, const Tenant& tenant,
                                          const RolloutUse& use, const SampleLimits& limits) {
  std::vector<RefusedMember> refused;
  for (size_t i = 0; i < group.members.size(); ++i) {
    Trajectory& member = group.members[i];
    if (member.is_failed) continue;
    const Status checked = check_member(member, tenant, use, limits);
    if (checked.ok()) continue;
    member.is_failed = true;
    member.fault = clipped_fault(checked.error().text());
    refused.push_back({static_cast<uint32_t>(i), member.fault});
  }
  return refused;
}

std::optional<Verdict> judge(const TrajectoryGroup& group, const Tenant& tenant,
                             const RolloutUse& use) {
  const auto rewards = compared_rewards(group, tenant);
  const bool is_compared = use.compares_in_group();
  const size_t needed = is_compared ? 2 : 1;
  if (rewards.size() < needed) {
    std::string first;
    for (const auto& member : group.members)
      if (first.empty() && member.is_failed) first = member.fault;
    return Verdict{
        RolloutEnd::kFailed,
        fmt::format("{} of {} members survived, {} are needed; the first fault: {}", rewards.size(),
                    group.members.size(), needed, first.empty() ? "none" : first)};
  }
  if (is_compared)
    if (const auto advantages = group_advantages(rewards, use.advantage); !advantages.ok())
      return Verdict{RolloutEnd::kFailed, advantages.error().text()};
  if (is_compared && tenant.filters.zero_advantage &&
      std::all_of(rewards.begin(), rewards.end(),
                  [&](double reward) { return reward == rewards.front(); }))
    return Verdict{RolloutEnd::kFiltered, "zero_advantage: all rewards are equal"};
  return std::nullopt;
}

Result<TrainBatch> make_batch(const std::vector<PooledGroup>& groups, const Tenant& tenant,
                              std::span<const RolloutUse> uses, PolicyVersion version) {
  TrainBatch batch;
  batch.tenant = tenant.slot;
  const RolloutUse& use = uses.front();  // the objective is the same in all environments
  batch.loss = use.data;
  std::vector<float> advantages;
  if (use.uses_advantages) {
    ASSIGN_OR_RETURN(advantages, advantages_of(groups, tenant, uses));
  }
  size_t survivor = 0;
  for (const auto& pooled : groups) {
    const Tenant& own = tenant.in_environment(pooled.group.source.environment);
    for (const auto& member : pooled.group.members) {
      if (member.is_failed) continue;
      const float advantage = advantages.empty() ? 0.0F : advantages[survivor++];
      ASSIGN_OR_RETURN(auto samples, samples_of(member, advantage, own, use.data, version));
      std::move(samples.begin(), samples.end(), std::back_inserter(batch.samples));
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

void RewardTotals::add(const TrajectoryGroup& group, double pass_reward) {
  ++num_groups;
  const auto rewards = rewards_of(group);
  for (const double reward : rewards) add(reward);
  if (group.version.is_none()) return;  // supervised data has no rewards
  counts.resize(kRewardBounds.size() + 1);
  for (const double reward : rewards) ++counts[bucket_of(kRewardBounds, reward)];
  if (rewards.empty() || rewards.size() < group.members.size()) return;
  ++num_complete;
  const auto size = static_cast<int64_t>(rewards.size());
  const auto num_passed = std::ranges::count_if(
      rewards, [pass_reward](double reward) { return reward >= pass_reward; });
  const auto counts_of_pass = pass_counts(size);
  passes.resize(std::max(passes.size(), counts_of_pass.size()));
  for (size_t i = 0; i < counts_of_pass.size(); ++i)
    passes[i] += pass_at_k(size, num_passed, counts_of_pass[i]);
}

/// Histograms of the batch, and pass@k of its groups and of the filtered ones.
void add_distributions(const std::vector<PooledGroup>& groups, const RewardTotals& all,
                       PolicyVersion version, const Tenant& tenant, MetricValues& metrics) {
  BucketCounts<kStalenessBounds.size()> ages = {};
  BucketCounts<kLengthBounds.size()> lengths = {};
  int64_t length_sum = 0, length_max = 0, count = 0;
  for (const auto& pooled : groups)
    for (const auto& member : pooled.group.members) {
      if (member.is_failed || pooled.group.version.is_none()) continue;
      const auto age = staleness(version, pooled.group.version);
      const auto length = std::count(member.sampled.begin(), member.sampled.end(), 1);
      ++ages[bucket_of(kStalenessBounds, static_cast<double>(age))];
      ++lengths[bucket_of(kLengthBounds, static_cast<double>(length))];
      length_sum += length;
      length_max = std::max<int64_t>(length_max, length);
      ++count;
    }
  if (count == 0) return;
  metrics.emplace_back("completion_len/all/mean",
                       static_cast<double>(length_sum) / static_cast<double>(count));
  metrics.emplace_back("completion_len/all/max", static_cast<double>(length_max));
  const auto counts_of_pass = pass_counts(tenant.group_size);
  for (size_t i = 0; i < std::min(all.passes.size(), counts_of_pass.size()); ++i)
    metrics.emplace_back(fmt::format("reward/all/pass@{}", counts_of_pass[i]),
                         all.passes[i] / static_cast<double>(all.num_complete));
  add_histogram("reward/all", kRewardBounds, all.counts, metrics);
  add_histogram("off_policy", kStalenessBounds, ages, metrics);
  add_histogram("completion_len/all", kLengthBounds, lengths, metrics);
}

void RewardTotals::add(const RewardTotals& other) {
  if (other.count > 0) {
    min = count == 0 ? other.min : std::min(min, other.min);
    max = count == 0 ? other.max : std::max(max, other.max);
  }
  sum += other.sum;
  count += other.count;
  num_groups += other.num_groups;
  num_complete += other.num_complete;
  counts.resize(std::max(counts.size(), other.counts.size()));
  for (size_t i = 0; i < other.counts.size(); ++i) counts[i] += other.counts[i];
  passes.resize(std::max(passes.size(), other.passes.size()));
  for (size_t i = 0; i < other.passes.size(); ++i) passes[i] += other.passes[i];
}

/// The mean score of each reward of the tenant over the members that trained.
MetricValues score_means(const std::vector<PooledGroup>& groups, const Tenant& tenant) {
  MetricValues means;
  for (uint32_t environment = 0; environment < tenant.num_environments(); ++environment) {
    const auto& rewards = tenant.in_environment(environment).rewards;
    for (size_t reward = 0; reward < rewards.size(); ++reward) {
      double sum = 0;
      int64_t count = 0;
      for (const auto& pooled : groups)
        for (const auto& member : pooled.group.members) {
          if (pooled.group.source.environment != environment || member.is_failed ||
              reward >= member.scores.size())
            continue;
          sum += member.scores[reward];
          ++count;
        }
      if (count > 0)
        means.emplace_back(fmt::format("reward/{}/mean", rewards[reward].label),
                           sum / static_cast<double>(count));
    }
  }
  return means;
}

/// The mean of log mu - log teacher over the sampled tokens that trained, which estimates the
/// distance of the policy from its teacher.
std::optional<double> teacher_kl(const std::vector<PooledGroup>& groups) {
  double sum = 0;
  int64_t count = 0;
  for (const auto& pooled : groups)
    for (const auto& member : pooled.group.members) {
      if (member.is_failed || member.reference.empty() || member.logprobs.empty()) continue;
      for (size_t i = 0; i < member.tokens.size(); ++i) {
        if (member.sampled[i] == 0) continue;
        sum += static_cast<double>(member.logprobs[i]) - static_cast<double>(member.reference[i]);
        ++count;
      }
    }
  if (count == 0) return std::nullopt;
  return sum / static_cast<double>(count);
}

MetricValues batch_metrics(const std::vector<PooledGroup>& groups, const RewardTotals& filtered,
                           PolicyVersion version, const Tenant& tenant) {
  RewardTotals all = filtered, trained;
  double staleness_sum = 0, length_sum = 0;
  int64_t staleness_max = 0, length_max = 0, num_truncated = 0, num_failed = 0;
  int64_t num_samples = 0, samples_max = 0;
  for (const auto& pooled : groups) {
    const PolicyVersion opened = pooled.group.version;
    const int64_t age = opened.is_none() ? 0 : staleness(version, opened);
    const double pass_reward =
        tenant.in_environment(pooled.group.source.environment).eval.pass_reward;
    all.add(pooled.group, pass_reward);
    trained.add(pooled.group, pass_reward);
    for (const auto& member : pooled.group.members) {
      num_failed += member.is_failed;
      if (member.is_failed) continue;
      staleness_sum += static_cast<double>(age);
      staleness_max = std::max(staleness_max, age);
      length_sum += static_cast<double>(member.tokens.size());
      for (size_t i = 0; i < member.num_samples(); ++i) {
        const auto [begin, end] = member.sample(i);
        length_max = std::max(length_max, static_cast<int64_t>(end - begin));
      }
      const auto member_samples = static_cast<int64_t>(member.num_samples());
      num_samples += member_samples;
      samples_max = std::max(samples_max, member_samples);
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
      {"seq_len/all/mean", length_sum / static_cast<double>(std::max<int64_t>(num_samples, 1))},
      {"seq_len/all/max", static_cast<double>(length_max)},
      {"is_truncated/all/mean", static_cast<double>(num_truncated) / samples},
      {"samples_per_rollout/all/mean", static_cast<double>(num_samples) / samples},
      {"samples_per_rollout/all/max", static_cast<double>(samples_max)},
      {"progress/groups", static_cast<double>(groups.size())},
      {"progress/samples", static_cast<double>(trained.count)},
      {"progress/samples_failed", static_cast<double>(num_failed)},
      {"progress/groups_filtered", static_cast<double>(filtered.num_groups)},
  };
  if (const auto distance = teacher_kl(groups))
    metrics.emplace_back("teacher_kl/all/mean", *distance);
  for (auto& mean : score_means(groups, tenant)) metrics.push_back(std::move(mean));
  add_distributions(groups, all, version, tenant, metrics);
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

void WastedTokens::add(const TrajectoryGroup& group, RolloutEnd end) {
  const int64_t all = num_sampled_tokens(group);
  if (end == RolloutEnd::kStale) stale += all;
  if (end == RolloutEnd::kFiltered) filtered += all;
  if (end == RolloutEnd::kFailed) failed += all;
  if (end != RolloutEnd::kTrained) return;
  for (const auto& member : group.members)
    if (member.is_failed) failed += std::count(member.sampled.begin(), member.sampled.end(), 1);
}

int64_t num_sampled_tokens(const TrajectoryGroup& group) {
  int64_t count = 0;
  for (const auto& member : group.members)
    count += std::count(member.sampled.begin(), member.sampled.end(), 1);
  return count;
}

}  // namespace primerl
