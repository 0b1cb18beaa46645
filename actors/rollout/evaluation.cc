#include "actors/rollout/evaluation.h"

#include <algorithm>

namespace primerl {
namespace {

double mean_of(double sum, int64_t count) {
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

int64_t num_sampled(const Trajectory& trajectory) {
  return std::count(trajectory.sampled.begin(), trajectory.sampled.end(), 1);
}

/// A reward's name among those of its environment.
std::string short_label(const Tenant& tenant, size_t reward) {
  std::string label = tenant.rewards[reward].label;
  if (const std::string prefix = tenant.label + "/"; label.starts_with(prefix))
    label.erase(0, prefix.size());
  return label;
}

}  // namespace

double pass_at_k(int64_t num_samples, int64_t num_passed, int64_t k) {
  CHECK(1 <= k && k <= num_samples, "pass@k needs at least k samples");
  if (num_samples - num_passed < k) return 1;
  double none_passes = 1;
  for (int64_t i = num_samples - num_passed + 1; i <= num_samples; ++i)
    none_passes *= 1 - static_cast<double>(k) / static_cast<double>(i);
  return 1 - none_passes;
}

std::vector<int64_t> pass_counts(int64_t samples) {
  std::vector<int64_t> counts;
  for (int64_t k = 1; k < samples; k *= 2) counts.push_back(k);
  counts.push_back(samples);
  return counts;
}

TenantSampling evaluation_sampling(const Tenant& tenant) {
  TenantSampling sampling = tenant.sampling;
  if (tenant.eval.temperature >= 0) sampling.temperature = tenant.eval.temperature;
  if (tenant.eval.top_p >= 0) sampling.top_p = tenant.eval.top_p;
  if (tenant.eval.max_tokens > 0) sampling.max_tokens = tenant.eval.max_tokens;
  return sampling;
}

void Evaluation::add(const Group& row, const TenantEval& options) {
  ++num_ended;
  int64_t num_here = 0, num_passed = 0;
  for (const Member& member : row.members) {
    const Trajectory& trajectory = member.trajectory;
    if (trajectory.is_failed) {
      ++num_failed;
      continue;
    }
    ++num_here;
    num_passed += trajectory.reward >= options.pass_reward ? 1 : 0;
    reward += trajectory.reward;
    num_tokens += num_sampled(trajectory);
    tokens_max = std::max(tokens_max, num_sampled(trajectory));
    num_turns += trajectory.num_turns;
    num_truncated += trajectory.is_truncated ? 1 : 0;
    scores.resize(std::max(scores.size(), trajectory.scores.size()));
    for (size_t i = 0; i < trajectory.scores.size(); ++i) scores[i] += trajectory.scores[i];
    for (const VersionSpan& span : trajectory.spans) {
      const bool is_first = num_scored == 0 && oldest.is_none() && newest.is_none();
      oldest = is_first ? span.version : std::min(oldest, span.version);
      newest = std::max(newest, span.version);
    }
  }
  num_scored += num_here;
  if (num_here < options.samples) return;
  ++num_complete;
  const auto counts = pass_counts(options.samples);
  passes.resize(counts.size());
  for (size_t i = 0; i < counts.size(); ++i)
    passes[i] += pass_at_k(num_here, num_passed, counts[i]);
}

std::string evaluation_line(const Evaluation& evaluation, const Tenant& tenant) {
  const Evaluation& of = evaluation;
  Json pass = Json::object(), rewards = Json::object();
  const auto counts = pass_counts(tenant.eval.samples);
  for (size_t i = 0; i < of.passes.size(); ++i)
    pass.set(std::to_string(counts[i]), mean_of(of.passes[i], of.num_complete));
  for (size_t i = 0; i < std::min(of.scores.size(), tenant.rewards.size()); ++i)
    rewards.set(short_label(tenant, i), mean_of(of.scores[i], of.num_scored));
  Json line = Json::object();
  line.set("tenant", tenant.name)
      .set("environment", tenant.environment_label())
      .set("version", of.version.value)
      .set("oldest", of.oldest.value)
      .set("newest", of.newest.value)
      .set("rows", of.num_ended)
      .set("samples", tenant.eval.samples)
      .set("rollouts", of.num_scored)
      .set("failed", of.num_failed)
      .set("complete_rows", of.num_complete)
      .set("reward", of.num_scored == 0 ? Json() : Json(mean_of(of.reward, of.num_scored)))
      .set("pass", std::move(pass))
      .set("rewards", std::move(rewards))
      .set("completion_len", mean_of(static_cast<double>(of.num_tokens), of.num_scored))
      .set("completion_len_max", of.tokens_max)
      .set("turns", mean_of(static_cast<double>(of.num_turns), of.num_scored))
      .set("truncated", mean_of(static_cast<double>(of.num_truncated), of.num_scored));
  return line.dump();
}

MetricValues evaluation_metrics(const Evaluation& evaluation, const Tenant& tenant) {
  const Evaluation& of = evaluation;
  MetricValues all;
  const auto add = [&](const std::string& name, double value) {
    all.emplace_back(fmt::format("eval/{}/{}", tenant.environment_label(), name), value);
  };
  const auto count = [](int64_t value) { return static_cast<double>(value); };
  if (of.num_scored > 0)
    add(fmt::format("avg@{}", tenant.eval.samples), mean_of(of.reward, of.num_scored));
  const auto counts = pass_counts(tenant.eval.samples);
  for (size_t i = 0; i < of.passes.size(); ++i)
    add(fmt::format("pass@{}", counts[i]), mean_of(of.passes[i], of.num_complete));
  for (size_t i = 0; i < std::min(of.scores.size(), tenant.rewards.size()); ++i)
    add(fmt::format("reward/{}/mean", short_label(tenant, i)),
        mean_of(of.scores[i], of.num_scored));
  add("rows", count(of.num_ended));
  add("failed_count", count(of.num_failed));
  add("completion_len/mean", mean_of(count(of.num_tokens), of.num_scored));
  add("completion_len/max", count(of.tokens_max));
  add("num_turns/mean", mean_of(count(of.num_turns), of.num_scored));
  add("is_truncated/mean", mean_of(count(of.num_truncated), of.num_scored));
  add("policy_version/min", count(of.oldest.value));
  add("policy_version/max", count(of.newest.value));
  return all;
}

void Evaluations::begin(const TenantEval& options, PolicyVersion start, bool is_resumed) {
  if (!options.is_on()) return;
  const bool is_first_due = is_resumed || options.at_start;
  const int64_t from = start.value + (is_first_due ? 0 : 1);
  next_ = PolicyVersion((from + options.interval - 1) / options.interval * options.interval);
  if (!is_resumed && options.at_start) next_ = start;
}

void Evaluations::on_live(const TenantEval& options, PolicyVersion live) {
  if (!options.is_on() || live < next_) return;
  is_due_ = true;
  next_ = PolicyVersion((live.value / options.interval + 1) * options.interval);
}

void Evaluations::begin_if_due(PolicyVersion live) {
  if (running_ || !is_due_) return;
  is_due_ = false;
  begun_ = live;
  running_.emplace();
  running_->version = live;
}

}  // namespace primerl
