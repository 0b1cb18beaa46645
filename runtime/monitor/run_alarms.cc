#include "runtime/monitor/run_alarms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "graph/base/json.h"
#include "runtime/monitor/metrics_log.h"
#include "runtime/store/line_reader.h"

namespace primerl {
namespace {

constexpr std::string_view kEntropyMetric = "entropy/all/mean";
constexpr std::string_view kMismatchMetric = "mismatch_kl/all/mean";
constexpr std::string_view kSizeMetric = "effective_size/all/mean";

const double* find_value(const MetricValues& values, std::string_view name) {
  for (const auto& [key, value] : values)
    if (key == name) return &value;
  return nullptr;
}

/// Batches' worth of groups that were filtered since the last step; empty in other lines.
std::optional<double> filtered_batches(const MetricValues& values, std::string_view prefix) {
  const double* filtered = find_value(values, fmt::format("{}groups_filtered", prefix));
  const double* groups = find_value(values, fmt::format("{}groups", prefix));
  if (filtered == nullptr || groups == nullptr || !(*groups > 0)) return std::nullopt;
  return *filtered / *groups;
}

/// A line of metrics.jsonl with the arguments of RunAlarms::add().
struct ReadMetricsLine {
  std::string tenant;
  int64_t step = 0;
  double time = 0;
  MetricValues values;
};

Result<ReadMetricsLine> read_metrics_line(const Json& json) {
  ReadMetricsLine line;
  ASSIGN_OR_RETURN(line.step, json.get_int("step"));
  ASSIGN_OR_RETURN(line.time, json.get_double("time"));
  ASSIGN_OR_RETURN(line.tenant, json.get_string("tenant"));
  for (const auto& [name, value] : json.as_object())
    if (value.is_number() && name != "step" && name != "time")
      line.values.emplace_back(name, value.as_double());
  return line;
}

/// Only what the alarms read, because a file may have many lines.
void drop_other_values(MetricValues& values) {
  std::erase_if(values, [](const auto& one) {
    const std::string_view name = one.first;
    return name != kEntropyMetric && name != kMismatchMetric && name != kSizeMetric &&
           !name.starts_with(kWaitingPrefix) && !name.starts_with("progress/groups");
  });
}

}  // namespace

std::string_view to_string(AlarmKind kind) {
  static constexpr std::string_view kNames[] = {"entropy_collapse", "mismatch_kl", "effective_size",
                                                "all_filtered"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view AlarmChange::advice() const {
  switch (kind) {
    case AlarmKind::kEntropyCollapse:
      return "If the reward is not at its maximum, the policy has stopped exploring: resume from "
             "an earlier checkpoint with a lower optimizer.lr, a higher sampling.temperature or a "
             "higher loss.clip_high.";
    case AlarmKind::kMismatchKl:
      return "Lower max_off_policy_steps or optimizer.lr. If it is high without staleness, engine "
             "and learner compute differently: compare their dtype, products and numerics.";
    case AlarmKind::kEffectiveSize:
      return "A few tokens decide each step: lower max_off_policy_steps or optimizer.lr, or choose "
             "an objective that limits weights, such as tis or icepop.";
    case AlarmKind::kAllFiltered:
      return "The tasks are too easy or too hard for the policy: read `primerl-graph rollouts "
             "--end filtered`, mix other tasks, or raise group_size.";
  }
  return "";
}

Json AlarmChange::json() const {
  Json line = Json::object();
  line.set("step", step)
      .set("time", std::round(time * 1e3) / 1e3)
      .set("tenant", tenant)
      .set("alarm", to_string(kind))
      .set("state", is_raised ? "raised" : "ended")
      .set("value", value)
      .set("bound", bound)
      .set("text", text);
  if (is_raised) line.set("advice", advice());
  return line;
}

double end_above(double bound, double times) { return std::min(times * bound, (1 + bound) / 2); }

void RunAlarms::Measure::add(double value, size_t window) {
  if (count < window) {
    first_sum += value;
    newest.push_back(value);
  } else {
    newest[count % window] = value;
  }
  ++count;
}

double RunAlarms::Measure::mean() const {
  double sum = 0;
  for (const double value : newest) sum += value;
  return sum / static_cast<double>(newest.size());
}

std::vector<RunAlarms::Finding> RunAlarms::findings_of(const OfTenant& tenant) const {
  std::vector<Finding> findings;
  if (bounds_.entropy_collapse > 0 && tenant.entropy.is_full(window()) &&
      tenant.entropy.first() > 0) {
    const double bound = bounds_.entropy_collapse;
    const double mean = tenant.entropy.mean(), part = mean / tenant.entropy.first();
    findings.push_back(
        {AlarmKind::kEntropyCollapse, part, bound, end_above(bound, kEntropyTimesEnded), true,
         fmt::format(
             "the entropy of the last {} steps is {:.3g} nats, {:.2g}% of that of the first "
             "{} ({:.3g}): the policy gives nearly the same answer each time",
             bounds_.window, mean, 100 * part, bounds_.window, tenant.entropy.first())});
  }
  if (bounds_.mismatch_kl > 0 && tenant.mismatch.is_full(window())) {
    const double most = bounds_.mismatch_kl;
    const double bound =
        std::clamp(kMismatchTimes * tenant.mismatch.first(), most / kMismatchTimes, most);
    findings.push_back(
        {AlarmKind::kMismatchKl, tenant.mismatch.mean(), bound, bound / 2, false,
         fmt::format("the mismatch KL of the last {} steps is {:.3g} nats, above {:.3g} (first {}: "
                     "{:.3g}): the learner trains on tokens that its policy would not sample",
                     bounds_.window, tenant.mismatch.mean(), bound, bounds_.window,
                     tenant.mismatch.first())});
  }
  if (bounds_.effective_size > 0 && tenant.effective_size.is_full(window())) {
    const double bound = bounds_.effective_size;
    findings.push_back(
        {AlarmKind::kEffectiveSize, tenant.effective_size.mean(), bound,
         end_above(bound, kEffectiveSizeTimesEnded), true,
         fmt::format("the effective sample size of the last {} steps is {:.0f}% of the batch",
                     bounds_.window, 100 * tenant.effective_size.mean())});
  }
  return findings;
}

std::vector<AlarmChange> RunAlarms::add(const std::string& tenant, int64_t step, double time,
                                        const MetricValues& values) {
  const MetricsKind kind = kind_of(values);
  if (kind != MetricsKind::kStep && kind != MetricsKind::kWaiting) return {};
  OfTenant& of_tenant = tenants_[tenant];
  of_tenant.last_step = step;
  std::vector<Finding> findings;
  if (kind == MetricsKind::kStep) {
    const auto add_value = [&](std::string_view name, Measure& measure) {
      if (const double* value = find_value(values, name); value != nullptr && std::isfinite(*value))
        measure.add(*value, window());
    };
    add_value(kEntropyMetric, of_tenant.entropy);
    add_value(kMismatchMetric, of_tenant.mismatch);
    add_value(kSizeMetric, of_tenant.effective_size);
    findings = findings_of(of_tenant);
  }
  const std::string_view prefix = kind == MetricsKind::kStep ? "progress/" : kWaitingPrefix;
  if (const auto filtered = filtered_batches(values, prefix); filtered && bounds_.all_filtered > 0)
    findings.push_back(
        {AlarmKind::kAllFiltered, *filtered, bounds_.all_filtered,
         kFilteredPartEnded * bounds_.all_filtered, false,
         fmt::format("{:.3g} batches of groups were filtered since the last step, because the "
                     "rewards of a group were equal",
                     *filtered)});
  std::vector<AlarmChange> changes;
  for (Finding& finding : findings) {
    auto& raised = of_tenant.raised[static_cast<size_t>(finding.kind)];
    const double bound = raised ? finding.ended_at : finding.raised_at;
    const bool is_above = finding.value > bound, is_below = finding.value < bound;
    // A raised alarm ends on the other side of its own bound; at a bound nothing changes.
    if (raised ? !(finding.is_low_bad ? is_above : is_below)
               : !(finding.is_low_bad ? is_below : is_above))
      continue;
    AlarmChange change{finding.kind, !raised, tenant, step, time, finding.value, bound, ""};
    change.text = raised ? fmt::format("{} is over: it was raised in step {}",
                                       to_string(finding.kind), raised->step)
                         : std::move(finding.text);
    if (raised)
      raised.reset();
    else
      raised = change;
    changes.push_back(std::move(change));
  }
  return changes;
}

std::vector<AlarmChange> RunAlarms::raised(const std::string& tenant) const {
  std::vector<AlarmChange> all;
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return all;
  for (const auto& alarm : found->second.raised)
    if (alarm) all.push_back(*alarm);
  return all;
}

std::optional<int64_t> RunAlarms::last_step(const std::string& tenant) const {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return std::nullopt;
  return found->second.last_step;
}

Result<AlarmHistory> alarm_history(const std::filesystem::path& metrics_file,
                                   const AlarmSettings& bounds) {
  std::vector<ReadMetricsLine> lines;
  std::map<std::string, int64_t> last_steps;
  std::error_code fault;
  if (!std::filesystem::exists(metrics_file, fault)) return AlarmHistory(bounds);
  ASSIGN_OR_RETURN(LineReader reader,
                   LineReader::open(metrics_file, LineReader::Order::kOldestFirst));
  for (std::string text;;) {
    ASSIGN_OR_RETURN(const bool has_line, reader.next(text));
    if (!has_line) break;
    ASSIGN_OR_RETURN(const Json json, parse_json(text, metrics_file.string()));
    if (!json.is_object())
      return error(Code::kCorrupt, "'{}' has a line that is no object", metrics_file.string());
    ASSIGN_OR_RETURN(ReadMetricsLine line, read_metrics_line(json));
    const MetricsKind kind = kind_of(line.values);
    if (kind != MetricsKind::kStep && kind != MetricsKind::kWaiting) continue;
    drop_other_values(line.values);
    // Steps that are made again, and what came after them.
    const auto is_replaced = [&](const ReadMetricsLine& other) {
      return other.tenant == line.tenant &&
             (other.step > line.step || (other.step == line.step && kind == MetricsKind::kStep));
    };
    auto& last = last_steps[line.tenant];
    if (last >= line.step) std::erase_if(lines, is_replaced);
    last = line.step;
    lines.push_back(std::move(line));
  }
  AlarmHistory history(bounds);
  for (const ReadMetricsLine& line : lines)
    for (AlarmChange& change : history.alarms.add(line.tenant, line.step, line.time, line.values))
      history.changes.push_back(std::move(change));
  return history;
}

std::vector<Json> raised_alarms(const std::filesystem::path& alarms_file) {
  std::map<std::pair<std::string, std::string>, Json> raised;  // by tenant and name
  auto reader = LineReader::open(alarms_file, LineReader::Order::kOldestFirst);
  std::string text;
  while (reader.ok()) {
    const auto has_line = reader->next(text);
    if (!has_line.ok() || !*has_line) break;
    auto line = parse_json(text, alarms_file.string());
    if (!line.ok()) break;
    const auto tenant = line->get_string("tenant"), name = line->get_string("alarm"),
               state = line->get_string("state");
    if (!tenant.ok() || !name.ok() || !state.ok()) continue;
    const std::pair key(*tenant, *name);
    raised.erase(key);
    if (*state == "raised") raised.emplace(key, std::move(line).value());
  }
  std::vector<Json> all;
  for (auto& [key, line] : raised) all.push_back(std::move(line));
  return all;
}

std::string alarm_text(const AlarmChange& alarm) {
  return fmt::format("{} since step {}: {}. {}", to_string(alarm.kind), alarm.step, alarm.text,
                     alarm.advice());
}

}  // namespace primerl
