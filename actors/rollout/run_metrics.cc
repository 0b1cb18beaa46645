#include "actors/rollout/run_metrics.h"

namespace primerl {

void RunMetrics::add_number(const std::string& name, double value) {
  if (sums_.size() == kRunMetricsMax && !sums_.contains(name)) return;
  auto& [sum, count] = sums_[name];
  sum += value;
  ++count;
}

void RunMetrics::add(int64_t step, const Group& group) {
  for (const Member& member : group.members) {
    if (!member.report) continue;
    step_ = step;
    const RunReport& report = *member.report;
    add_number("num_turns", member.trajectory.num_turns);
    add_number("num_branches", report.num_branches);
    add_number("num_tool_calls", report.num_tool_calls);
    add_number("turns_unmatched", report.num_unmatched);
    for (const auto& [name, value] : report.scores) add_number("score/" + name, value);
    for (const auto& [name, value] : report.metrics) add_number("metric/" + name, value);
  }
}

MetricValues RunMetrics::finish(std::string_view environment) {
  MetricValues values;
  for (const auto& [name, sum] : std::exchange(sums_, {}))
    values.emplace_back(fmt::format("env/{}/{}/mean", environment, name),
                        sum.first / static_cast<double>(sum.second));
  return values;
}

}  // namespace primerl
