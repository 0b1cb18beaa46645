#include "actors/trainer/environment_metrics.h"

#include <algorithm>

#include "actors/rollout/evaluation.h"

namespace primerl {
namespace {

struct Lengths {
  double sum = 0;
  int64_t max = 0, num_samples = 0, num_truncated = 0, num_solved = 0;

  void add(const Trajectory& member, double pass_reward) {
    sum += static_cast<double>(member.tokens.size());
    num_samples += static_cast<int64_t>(member.num_samples());
    for (size_t i = 0; i < member.num_samples(); ++i) {
      const auto [begin, end] = member.sample(i);
      max = std::max(max, static_cast<int64_t>(end - begin));
    }
    num_truncated += member.is_truncated;
    num_solved += member.reward >= pass_reward;
  }
};

void add_environment(const std::vector<PooledGroup>& groups, const RewardTotals& filtered,
                     uint32_t index, const Tenant& own, MetricValues& metrics) {
  RewardTotals all = filtered, trained;
  Lengths lengths;
  for (const PooledGroup& pooled : groups) {
    if (pooled.group.source.environment != index) continue;
    all.add(pooled.group, own.eval.pass_reward);
    trained.add(pooled.group, own.eval.pass_reward);
    for (const Trajectory& member : pooled.group.members)
      if (!member.is_failed) lengths.add(member, own.eval.pass_reward);
  }
  const auto add = [&](std::string_view what, double value) {
    const size_t slash = what.find('/');
    metrics.emplace_back(fmt::format("{}/{}{}", what.substr(0, slash), own.label,
                                     slash == std::string_view::npos ? "" : what.substr(slash)),
                         value);
  };
  add("batch", static_cast<double>(trained.num_groups) /
                   static_cast<double>(std::max<size_t>(groups.size(), 1)));
  if (all.count > 0) {
    add("reward/mean", all.mean());
    add("reward/min", all.min);
    add("reward/max", all.max);
    const auto counts = pass_counts(own.group_size);
    for (size_t i = 0; i < std::min(all.passes.size(), counts.size()); ++i)
      add(fmt::format("reward/pass@{}", counts[i]),
          all.passes[i] / static_cast<double>(all.num_complete));
  }
  if (trained.count == 0) return;
  const auto count = static_cast<double>(trained.count);
  add("seq_len/mean", lengths.sum / static_cast<double>(std::max<int64_t>(lengths.num_samples, 1)));
  add("seq_len/max", static_cast<double>(lengths.max));
  add("is_truncated/mean", static_cast<double>(lengths.num_truncated) / count);
  add("solved/mean", static_cast<double>(lengths.num_solved) / count);
}

}  // namespace

void TrainedRows::add(const TenantCurriculum& options, const TrajectoryGroup& group) {
  next = std::max(next, group.source.position + 1);
  stage = std::max(stage, group.source.stage);
  if (const auto reward = mean_reward(group)) pools.add(options, group.source.row, *reward);
}

MetricValues environment_metrics(const std::vector<PooledGroup>& groups,
                                 const std::map<uint32_t, RewardTotals>& filtered,
                                 const Tenant& tenant) {
  MetricValues metrics;
  for (uint32_t i = 0; i < tenant.mix.size(); ++i) {
    const auto found = filtered.find(i);
    add_environment(groups, found == filtered.end() ? RewardTotals() : found->second, i,
                    tenant.in_environment(i), metrics);
  }
  return metrics;
}

MetricValues curriculum_metrics(const std::map<uint32_t, TrainedRows>& rows, const Tenant& tenant) {
  MetricValues metrics;
  for (const auto& [index, trained] : rows) {
    const Tenant& own = tenant.in_environment(index);
    const auto counts = trained.pools.counts(own.curriculum);
    const auto names = pool_names(own.curriculum);
    for (size_t i = 0; i < counts.size(); ++i)
      metrics.emplace_back(fmt::format("curriculum/{}/{}", own.environment_label(), names[i]),
                           static_cast<double>(counts[i]));
    if (!own.curriculum.stages.empty())
      metrics.emplace_back(fmt::format("curriculum/{}/stage", own.environment_label()),
                           trained.stage);
  }
  return metrics;
}

std::vector<std::string> metrics_of_some_steps(const Tenant& tenant) {
  std::vector<std::string> names;
  const auto counts = pass_counts(tenant.group_size);
  for (const int64_t count : counts) names.push_back(fmt::format("reward/all/pass@{}", count));
  if (tenant.teacher.is_there()) names.emplace_back("teacher_kl/all/mean");
  if (tenant.teacher.top_k > 0)
    for (const char* name : {"teacher_kl/top_k/mean", "teacher_mass/top_k/mean"})
      names.emplace_back(name);
  for (size_t i = 0; i < tenant.num_environments(); ++i) {
    const Tenant& own = tenant.in_environment(i);
    for (const TenantReward& reward : own.rewards)
      names.push_back(fmt::format("reward/{}/mean", reward.label));
    if (tenant.mix.empty()) continue;
    for (const char* what : {"mean", "min", "max"})
      names.push_back(fmt::format("reward/{}/{}", own.label, what));
    for (const int64_t count : counts)
      names.push_back(fmt::format("reward/{}/pass@{}", own.label, count));
    for (const char* what : {"mean", "max"})
      names.push_back(fmt::format("seq_len/{}/{}", own.label, what));
    names.push_back(fmt::format("is_truncated/{}/mean", own.label));
    names.push_back(fmt::format("solved/{}/mean", own.label));
  }
  return names;
}

Json curricula_json(const std::map<uint32_t, TrainedRows>& rows, const Tenant& tenant) {
  Json all = Json::object();
  for (const auto& [index, trained] : rows) {
    const Tenant& own = tenant.in_environment(index);
    Json one = trained.pools.to_json(own.curriculum);
    one.set("next", static_cast<int64_t>(trained.next))
        .set("stage", static_cast<int64_t>(trained.stage));
    all.set(own.environment_label(), std::move(one));
  }
  return all;
}

Result<std::map<uint32_t, TrainedRows>> read_curricula(const Json& manifest, const Tenant& tenant,
                                                       int64_t num_resumes) {
  std::map<uint32_t, TrainedRows> rows;
  for (uint32_t i = 0; i < tenant.num_environments(); ++i) {
    const Tenant& own = tenant.in_environment(i);
    if (!own.curriculum.is_on()) continue;
    TrainedRows& trained = rows[i];
    const Json* const all = manifest.find(kCurricula);
    const Json* const saved = all != nullptr ? all->find(own.environment_label()) : nullptr;
    if (saved == nullptr) continue;
    ASSIGN_OR_RETURN(trained.pools, RowPools::from_json(own.curriculum, *saved));
    trained.pools.return_rows(own.curriculum, return_key(own, num_resumes));
    ASSIGN_OR_RETURN(const int64_t next, saved->get_int("next"));
    ASSIGN_OR_RETURN(const int64_t stage, saved->get_int("stage"));
    const auto last = std::max<int64_t>(std::ssize(own.curriculum.stages) - 1, 0);
    trained.next = static_cast<uint64_t>(std::max<int64_t>(next, 0));
    trained.stage = static_cast<uint32_t>(std::clamp<int64_t>(stage, 0, last));
  }
  return rows;
}

}  // namespace primerl
