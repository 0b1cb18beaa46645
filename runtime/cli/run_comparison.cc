#include "runtime/cli/run_comparison.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>

#include "graph/base/files.h"
#include "graph/base/suggest.h"
#include "runtime/cli/run_facts.h"
#include "runtime/control/changed_values.h"

namespace primerl {
namespace {

constexpr std::string_view kSeedKey = "graph.seed";
constexpr std::string_view kRewardMetric = "reward/all/mean", kLossMetric = "loss/mean";
constexpr size_t kTimePoints = 200;  // of a curve of several runs over time
constexpr size_t kPointsShownMax = 1000;

using CurvePoints = std::vector<ChartPoint>;

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

ChartPoint point_of(double x, const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return {x, median_of(values), *low, *high};
}

/// Each value becomes the mean of the last `count` ones.
MetricSeries smoothed(const MetricSeries& series, int64_t count) {
  MetricSeries smooth = series;
  for (size_t i = 0; i < series.size(); ++i) {
    const size_t begin = i + 1 - std::min(i + 1, static_cast<size_t>(count));
    double sum = 0;
    for (size_t j = begin; j <= i; ++j) sum += series[j].value;
    smooth[i].value = sum / static_cast<double>(i + 1 - begin);
  }
  return smooth;
}

/// At a step a value counts if at least half of the runs have one there.
CurvePoints points_over_steps(const std::vector<MetricSeries>& runs) {
  std::map<int64_t, std::vector<double>> values;
  for (const MetricSeries& series : runs)
    for (const MetricPoint& point : series) values[point.step].push_back(point.value);
  CurvePoints points;
  for (const auto& [step, at_step] : values)
    if (at_step.size() * 2 >= runs.size())
      points.push_back(point_of(static_cast<double>(step), at_step));
  return points;
}

/// The value at `time` on the straight line between two points; empty outside of the series.
std::optional<double> value_at(const MetricSeries& series, double time) {
  const auto after =
      std::lower_bound(series.begin(), series.end(), time,
                       [](const MetricPoint& point, double at) { return point.time < at; });
  if (after == series.end()) return std::nullopt;
  if (after->time == time) return after->value;
  if (after == series.begin()) return std::nullopt;
  const MetricPoint& before = *std::prev(after);
  const double share = (time - before.time) / (after->time - before.time);
  return before.value + share * (after->value - before.value);
}

CurvePoints points_over_time(const std::vector<MetricSeries>& runs, double unit_seconds) {
  CurvePoints points;
  if (runs.size() == 1) {
    for (const MetricPoint& point : runs.front())
      points.push_back({point.time / unit_seconds, point.value, point.value, point.value});
    return points;
  }
  double first = HUGE_VAL, last = 0;
  for (const MetricSeries& series : runs) {
    first = std::min(first, series.front().time);
    last = std::max(last, series.back().time);
  }
  for (size_t i = 0; i < kTimePoints; ++i) {
    const double time =
        first + (last - first) * static_cast<double>(i) / static_cast<double>(kTimePoints - 1);
    std::vector<double> values;
    for (const MetricSeries& series : runs)
      if (const auto value = value_at(series, time)) values.push_back(*value);
    if (values.size() * 2 >= runs.size()) points.push_back(point_of(time / unit_seconds, values));
  }
  return points;
}

/// At most kPointsShownMax: adjacent ones become their mean, with their whole spread.
CurvePoints thinned(CurvePoints points) {
  if (points.size() <= kPointsShownMax) return points;
  CurvePoints few;
  for (size_t i = 0; i < kPointsShownMax; ++i) {
    const size_t begin = i * points.size() / kPointsShownMax;
    const size_t end = (i + 1) * points.size() / kPointsShownMax;
    ChartPoint mean{0, 0, points[begin].low, points[begin].high};
    for (size_t j = begin; j < end; ++j) {
      mean.x += points[j].x / static_cast<double>(end - begin);
      mean.y += points[j].y / static_cast<double>(end - begin);
      mean.low = std::min(mean.low, points[j].low);
      mean.high = std::max(mean.high, points[j].high);
    }
    few.push_back(mean);
  }
  return few;
}

double mean_of(const MetricSeries& series, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += series[i].value;
  return sum / static_cast<double>(end - begin);
}

CurveNumbers numbers_of(const std::vector<MetricSeries>& runs) {
  CurveNumbers numbers;
  numbers.num_runs = runs.size();
  std::vector<double> first, last;
  for (const MetricSeries& series : runs) {
    const size_t count = std::min(kEndPoints, series.size());
    first.push_back(mean_of(series, 0, count));
    last.push_back(mean_of(series, series.size() - count, series.size()));
    numbers.last_step = std::max(numbers.last_step, series.back().step);
    numbers.last_time = std::max(numbers.last_time, series.back().time);
  }
  if (runs.empty()) return numbers;
  numbers.first = median_of(first);
  const ChartPoint ends = point_of(0, last);
  numbers.last = ends.y, numbers.last_low = ends.low, numbers.last_high = ends.high;
  return numbers;
}

/// The unit of a time axis that ends at `seconds`.
struct TimeUnit {
  std::string_view name = "s";
  double seconds = 1;
};
TimeUnit time_unit(double seconds) {
  if (seconds < 180) return {};
  return seconds < 3 * 3600 ? TimeUnit{"min", 60} : TimeUnit{"h", 3600};
}

std::vector<MetricSeries> series_of(const std::vector<ComparedRun>& runs,
                                    const ComparedCurve& curve, const std::string& metric,
                                    int64_t smooth) {
  std::vector<MetricSeries> all;
  for (const size_t run : curve.runs) {
    const auto tenant = runs[run].tenants.find(curve.tenant);
    if (tenant == runs[run].tenants.end()) continue;
    if (const auto found = tenant->second.series.find(metric); found != tenant->second.series.end())
      all.push_back(smooth > 1 ? smoothed(found->second, smooth) : found->second);
  }
  return all;
}

ComparedMetric compared_metric(RunComparison& comparison, const std::string& metric,
                               const CompareQuery& query) {
  ComparedMetric compared;
  std::vector<std::vector<MetricSeries>> series;
  double seconds = 0;
  for (const ComparedCurve& curve : comparison.curves) {
    series.push_back(series_of(comparison.runs, curve, metric, query.smooth));
    compared.numbers.push_back(numbers_of(series.back()));
    seconds = std::max(seconds, compared.numbers.back().last_time);
    if (series.back().empty())
      comparison.notes.push_back(fmt::format("'{}' has no '{}'", curve.name, metric));
    else if (series.back().size() < curve.runs.size())
      comparison.notes.push_back(fmt::format("{} of the {} runs of '{}' have '{}'",
                                             series.back().size(), curve.runs.size(), curve.name,
                                             metric));
  }
  const TimeUnit unit = time_unit(seconds);
  compared.chart.title = metric;
  compared.chart.y_name = unit_of_metric(metric);
  compared.chart.x_name =
      query.over_time ? fmt::format("time since the start ({})", unit.name) : "step";
  for (size_t i = 0; i < series.size(); ++i) {
    ChartLine line{comparison.curves[i].name, {}, series[i].size() > 1};
    if (!series[i].empty())
      line.points = thinned(query.over_time ? points_over_time(series[i], unit.seconds)
                                            : points_over_steps(series[i]));
    compared.chart.lines.push_back(std::move(line));
  }
  return compared;
}

std::set<std::string> tenant_names(const std::vector<ComparedRun>& runs,
                                   const std::vector<size_t>& chosen) {
  std::set<std::string> names;
  for (const size_t run : chosen)
    for (const auto& [tenant, series] : runs[run].tenants) names.insert(tenant);
  return names;
}

std::vector<ComparedCurve> curves_of(const std::vector<ComparedRun>& runs,
                                     const CompareQuery& query) {
  std::vector<std::vector<size_t>> groups;
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& members) {
      return !query.each && runs[members.front()].configuration() == runs[i].configuration();
    });
    if (group == groups.end())
      groups.push_back({i});
    else
      group->push_back(i);
  }
  std::vector<ComparedCurve> curves;
  for (const auto& members : groups) {
    std::string name = runs[members.front()].name;
    if (members.size() > 1) name += fmt::format(" and {} more", members.size() - 1);
    const auto tenants = tenant_names(runs, members);
    for (const std::string& tenant : tenants) {
      if (!query.tenant.empty() && tenant != query.tenant) continue;
      curves.push_back({tenants.size() > 1 ? fmt::format("{}, tenant {}", name, tenant) : name,
                        members, tenant});
    }
  }
  return curves;
}

std::vector<OptionDifference> differences_of(const std::vector<ComparedRun>& runs) {
  std::set<std::string> keys;
  for (const ComparedRun& run : runs)
    for (const auto& [key, value] : run.values) keys.insert(key);
  std::vector<OptionDifference> differences;
  for (const std::string& key : keys) {
    OptionDifference one{key, {}};
    for (const ComparedRun& run : runs) {
      const auto found = run.values.find(key);
      one.values.push_back(found == run.values.end() ? "" : found->second);
    }
    if (std::any_of(one.values.begin(), one.values.end(),
                    [&](const std::string& value) { return value != one.values.front(); }))
      differences.push_back(std::move(one));
  }
  return differences;
}

bool any_has(const std::vector<ComparedRun>& runs, const std::string& metric) {
  return std::any_of(runs.begin(), runs.end(), [&](const ComparedRun& run) {
    return std::any_of(run.tenants.begin(), run.tenants.end(),
                       [&](const auto& tenant) { return tenant.second.series.contains(metric); });
  });
}

Error no_such_metric(const std::vector<ComparedRun>& runs, const std::string& metric) {
  std::set<std::string> all;
  for (const ComparedRun& run : runs)
    for (const auto& [tenant, series] : run.tenants)
      all.insert(series.names.begin(), series.names.end());
  const std::vector<std::string> names(all.begin(), all.end());
  if (all.contains(metric))
    return error(Code::kInvalid, "no run has a finite value of '{}'", metric);
  auto fault = error(Code::kInvalid, "no run has a metric '{}'", metric);
  if (const std::string near = nearest_name(metric, names); !near.empty())
    return std::move(fault).note(fmt::format("did you mean '{}'?", near));
  return std::move(fault).note("metrics: " + join_names(names));
}

Result<ComparedRun> read_compared_run(const std::string& name,
                                      const std::set<std::string>& wanted) {
  const auto folder = run_path(name);
  RETURN_IF_ERROR(read_run_facts(folder));
  ComparedRun run;
  run.name = name.size() > 1 && name.ends_with('/') ? name.substr(0, name.size() - 1) : name;
  ASSIGN_OR_RETURN(const std::string graph, read_text_file(folder / "graph.resolved.toml"));
  ASSIGN_OR_RETURN(run.values, graph_values(graph));
  std::error_code fault;
  if (std::filesystem::exists(folder / "metrics.jsonl", fault)) {
    ASSIGN_OR_RETURN(run.tenants, read_metric_series(folder / "metrics.jsonl", wanted));
  }
  if (run.tenants.empty())
    return error(Code::kNotFound, "the run '{}' has no step yet", folder.string())
        .note("compare it after its first step");
  return run;
}

}  // namespace

std::string ComparedRun::seed() const {
  const auto found = values.find(std::string(kSeedKey));
  return found == values.end() ? "" : found->second;
}

std::map<std::string, std::string> ComparedRun::configuration() const {
  auto without_seed = values;
  without_seed.erase(std::string(kSeedKey));
  return without_seed;
}

std::string_view unit_of_metric(std::string_view name) {
  if (name.ends_with("_per_second")) return "tokens/s";
  if (name.starts_with("time/")) return "s";
  if (name.starts_with("entropy/") || name.starts_with("mismatch_kl/")) return "nats";
  if (name.starts_with("seq_len/") || name.find("completion_len/") != std::string_view::npos)
    return "tokens";
  if (name.starts_with("off_policy/")) return "versions";
  if (name.starts_with("masked/") || name.starts_with("capped/") ||
      name.starts_with("is_truncated/"))
    return "fraction";
  if (name.ends_with("tokens")) return "tokens";
  return "";
}

Result<std::vector<ComparedRun>> read_compared_runs(const CompareQuery& query) {
  std::set<std::string> wanted(query.metrics.begin(), query.metrics.end());
  if (wanted.empty()) wanted = {std::string(kRewardMetric), std::string(kLossMetric)};
  std::vector<ComparedRun> runs;
  for (const std::string& name : query.runs) {
    ASSIGN_OR_RETURN(ComparedRun run, read_compared_run(name, wanted));
    runs.push_back(std::move(run));
  }
  return runs;
}

Result<RunComparison> compare_runs(std::vector<ComparedRun> runs, const CompareQuery& query) {
  std::vector<std::string> metrics = query.metrics;
  if (metrics.empty())
    metrics.emplace_back(!any_has(runs, std::string(kRewardMetric)) &&
                                 any_has(runs, std::string(kLossMetric))
                             ? kLossMetric
                             : kRewardMetric);
  for (const std::string& metric : metrics)
    if (!any_has(runs, metric)) return no_such_metric(runs, metric);
  RunComparison comparison;
  comparison.curves = curves_of(runs, query);
  if (comparison.curves.empty()) {
    std::vector<size_t> all(runs.size());
    std::iota(all.begin(), all.end(), size_t{0});
    const auto tenants = tenant_names(runs, all);
    return error(Code::kInvalid, "no run has a tenant '{}'", query.tenant)
        .note("tenants: " + join_names(std::vector(tenants.begin(), tenants.end())));
  }
  if (comparison.curves.size() > kChartLinesMax)
    return error(Code::kInvalid, "{} curves (each tenant of a run is one), at most {} can be drawn",
                 comparison.curves.size(), kChartLinesMax)
        .note("compare fewer runs, or one tenant of them: --tenant NAME");
  comparison.differences = differences_of(runs);
  comparison.runs = std::move(runs);
  for (const std::string& metric : metrics)
    comparison.metrics.push_back(compared_metric(comparison, metric, query));
  return comparison;
}

}  // namespace primerl
