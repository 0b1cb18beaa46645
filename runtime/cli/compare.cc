#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <span>

#include "graph/base/files.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/run_comparison.h"
#include "runtime/cli/run_facts.h"
#include "runtime/monitor/status_line.h"
#include "runtime/monitor/text_table.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

constexpr size_t kDifferencesShownMax = 40;  // --json has all
constexpr size_t kDifferencesDrawnMax = 16;  // in the SVG file
constexpr size_t kValueShownMax = 60;        // characters
constexpr int64_t kSmoothMax = 1000;

struct CompareRunsArguments {
  CompareQuery query;
  std::string over = "step";
  std::string svg;
  bool json = false;
};

/// Refuses what no run could make right.
Status check_compare_query(const CompareQuery& query) {
  if (query.runs.size() > kComparedRunsMax)
    return error(Code::kInvalid, "{} runs, at most {} can be compared", query.runs.size(),
                 kComparedRunsMax);
  if (query.metrics.size() > kComparedMetricsMax)
    return error(Code::kInvalid, "{} metrics, at most {} can be compared", query.metrics.size(),
                 kComparedMetricsMax);
  for (size_t i = 0; i < query.metrics.size(); ++i)
    if (std::count(query.metrics.begin(), query.metrics.end(), query.metrics[i]) > 1)
      return error(Code::kInvalid, "--metric {} is given twice", query.metrics[i]);
  for (size_t i = 0; i < query.runs.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (run_path(query.runs[i]) == run_path(query.runs[j]))
        return error(Code::kInvalid, "'{}' and '{}' are the same run", query.runs[j],
                     query.runs[i]);
  return ok();
}

std::string number_text(double value) { return fmt::format("{:.4g}", value); }

std::string curve_table(const RunComparison& comparison, const ComparedMetric& metric) {
  const bool has_groups =
      std::any_of(metric.numbers.begin(), metric.numbers.end(),
                  [](const CurveNumbers& numbers) { return numbers.num_runs > 1; });
  std::vector<std::string> heads = {"  ", "runs", "steps", "time", "first", "last"};
  if (has_groups) heads.insert(heads.begin() + 2, "of"), heads.push_back("spread of last");
  TextTable table(std::move(heads), 2);
  for (size_t i = 0; i < metric.numbers.size(); ++i) {
    const CurveNumbers& numbers = metric.numbers[i];
    std::vector<std::string> cells = {fmt::format("{} ", chart_mark(i)), comparison.curves[i].name};
    if (has_groups) cells.push_back(fmt::format("{}", numbers.num_runs));
    if (numbers.num_runs == 0) {
      cells.insert(cells.end(), 4, "-");
    } else {
      cells.push_back(fmt::format("{}", numbers.last_step));
      cells.push_back(short_duration(numbers.last_time));
      cells.push_back(number_text(numbers.first));
      cells.push_back(number_text(numbers.last));
    }
    if (has_groups)
      cells.push_back(numbers.num_runs < 2 ? "-"
                                           : fmt::format("{} to {}", number_text(numbers.last_low),
                                                         number_text(numbers.last_high)));
    table.add(std::move(cells));
  }
  return table.text();
}

std::string shown_value(const std::string& value) {
  if (value.empty()) return "not written";
  return value.size() <= kValueShownMax ? value : value.substr(0, kValueShownMax - 3) + "...";
}

/// "2e-4 (a, b), 3e-4 (c)": each value with the marks of the curves that have it.
std::string values_by_curve(const RunComparison& comparison, const OptionDifference& difference) {
  std::vector<std::pair<std::string, std::vector<std::string>>> values;
  for (size_t curve = 0; curve < comparison.curves.size(); ++curve)
    for (const size_t run : comparison.curves[curve].runs) {
      const std::string value = shown_value(difference.values[run]);
      auto found = std::find_if(values.begin(), values.end(),
                                [&](const auto& one) { return one.first == value; });
      if (found == values.end()) found = values.insert(values.end(), {value, {}});
      const std::string mark(1, chart_mark(curve));
      if (std::find(found->second.begin(), found->second.end(), mark) == found->second.end())
        found->second.push_back(mark);
    }
  std::string text;
  for (const auto& [value, marks] : values)
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", value, fmt::join(marks, ", "));
  return text;
}

/// At most `lines_max` options, then how many more. Those that all graphs have come first: runs of
/// different versions of the program differ in many that only the newer one knows.
std::vector<std::string> difference_lines(const RunComparison& comparison, size_t lines_max) {
  std::vector<OptionDifference> all = comparison.differences;
  std::stable_partition(all.begin(), all.end(), [](const OptionDifference& difference) {
    return std::find(difference.values.begin(), difference.values.end(), "") ==
           difference.values.end();
  });
  std::vector<std::string> lines;
  for (size_t i = 0; i < std::min(all.size(), lines_max); ++i)
    lines.push_back(all[i].key + " = " + values_by_curve(comparison, all[i]));
  if (all.size() > lines_max)
    lines.push_back(fmt::format("and {} more: --json lists all", all.size() - lines_max));
  return lines;
}

std::string comparison_text(const RunComparison& comparison, const Terminal& terminal) {
  ChartTextStyle style;
  style.utf8 = terminal.utf8;
  style.width = std::clamp(terminal.columns - 16, 20, 100);
  std::string text;
  for (const ComparedMetric& metric : comparison.metrics)
    text += (text.empty() ? "" : "\n") + chart_text(metric.chart, style) + "\n" +
            curve_table(comparison, metric);
  if (comparison.runs.size() < 2) return text;
  text +=
      comparison.differences.empty() ? "\nthe graphs are the same\n" : "\noptions that differ\n";
  for (const std::string& line : difference_lines(comparison, kDifferencesShownMax))
    text += "  " + line + "\n";
  return text;
}

Json comparison_json(const RunComparison& comparison, const CompareQuery& query) {
  Json runs = Json::array(), metrics = Json::array(), differences = Json::array();
  for (const ComparedRun& run : comparison.runs)
    runs.push_back(Json::object().set("name", run.name).set("folder", run_path(run.name).string()));
  for (const ComparedMetric& metric : comparison.metrics) {
    Json curves = Json::array();
    for (size_t i = 0; i < metric.numbers.size(); ++i) {
      const CurveNumbers& numbers = metric.numbers[i];
      Json points = Json::array();
      for (const ChartPoint& point : metric.chart.lines[i].points)
        points.push_back(Json::list(std::vector<double>{point.x, point.y, point.low, point.high}));
      std::vector<uint64_t> members(comparison.curves[i].runs.begin(),
                                    comparison.curves[i].runs.end());
      curves.push_back(
          Json::object()
              .set("name", comparison.curves[i].name)
              .set("tenant", comparison.curves[i].tenant)
              .set("runs", Json::list(members))
              .set("first", numbers.num_runs == 0 ? Json() : Json(numbers.first))
              .set("last", numbers.num_runs == 0 ? Json() : Json(numbers.last))
              .set("last_low", numbers.num_runs == 0 ? Json() : Json(numbers.last_low))
              .set("last_high", numbers.num_runs == 0 ? Json() : Json(numbers.last_high))
              .set("points", std::move(points)));
    }
    metrics.push_back(Json::object()
                          .set("name", metric.chart.title)
                          .set("unit", metric.chart.y_name)
                          .set("x", metric.chart.x_name)
                          .set("curves", std::move(curves)));
  }
  for (const OptionDifference& difference : comparison.differences)
    differences.push_back(
        Json::object().set("key", difference.key).set("values", Json::list(difference.values)));
  return Json::object()
      .set("schema", "primerl.compare/1")
      .set("over", query.over_time ? "time" : "step")
      .set("runs", std::move(runs))
      .set("metrics", std::move(metrics))
      .set("differences", std::move(differences));
}

std::string comparison_svg(const RunComparison& comparison, const CompareQuery& query) {
  std::vector<Chart> charts;
  for (const ComparedMetric& metric : comparison.metrics) charts.push_back(metric.chart);
  for (Chart& chart : charts)  // the legend and the notes name the same marks
    for (size_t i = 0; i < chart.lines.size(); ++i)
      chart.lines[i].name = fmt::format("{}  {}", chart_mark(i), chart.lines[i].name);
  std::vector<std::string> notes;
  const auto& curves = comparison.curves;
  if (std::any_of(curves.begin(), curves.end(),
                  [](const ComparedCurve& curve) { return curve.runs.size() > 1; }))
    notes.emplace_back("A line of several seeds is their median; the band is their whole range.");
  if (query.smooth > 1)
    notes.push_back(fmt::format("Each point is the mean of {} steps.", query.smooth));
  if (comparison.runs.size() > 1)
    for (std::string& line : difference_lines(comparison, kDifferencesDrawnMax))
      notes.push_back(std::move(line));
  const std::string title =
      comparison.metrics.size() == 1
          ? fmt::format("{} of {}", comparison.metrics.front().chart.title,
                        comparison.runs.size() == 1
                            ? comparison.runs.front().name
                            : fmt::format("{} runs", comparison.runs.size()))
          : fmt::format("{} metrics of {} run{}", comparison.metrics.size(), comparison.runs.size(),
                        comparison.runs.size() == 1 ? "" : "s");
  return charts_svg(title, charts, notes);
}

int run_compare_runs(CompareRunsArguments& arguments) {
  CompareQuery& query = arguments.query;
  query.over_time = arguments.over == "time";
  if (const Status checked = check_compare_query(query); !checked.ok())
    return fail(checked.error(), kExitBadCommandLine);
  auto runs = read_compared_runs(query);
  if (!runs.ok()) return fail(runs.error(), kExitBadConfiguration);
  const auto comparison = compare_runs(std::move(runs).value(), query);
  if (!comparison.ok()) return fail(comparison.error(), kExitBadCommandLine);
  for (const std::string& note : comparison->notes) complain("note: {}\n", note);
  if (!arguments.svg.empty()) {
    const std::string svg = comparison_svg(*comparison, query);
    const std::span<const std::byte> parts[] = {std::as_bytes(std::span(svg))};
    const Status written = write_file_synced(arguments.svg, parts);
    if (!written.ok()) return fail(written.error(), kExitFailed);
  }
  if (arguments.json)
    print_json(comparison_json(*comparison, query));
  else
    print_text(comparison_text(*comparison, terminal_of(STDOUT_FILENO)));
  return kExitDone;
}

}  // namespace

Command compare_command() {
  auto arguments = std::make_shared<CompareRunsArguments>();
  return {"compare", "draws the metrics of several runs, and lists their different options",
          "primerl-graph compare runs/latest --metric reward/all/mean --metric entropy/all/mean "
          "--svg reward.svg",
          [arguments](Arguments& flags) {
            flags.positionals(arguments->query.runs, "RUN", "run folders, at most 32");
            flags.texts(arguments->query.metrics, "--metric", "NAME",
                        "a key of metrics.jsonl; may repeat; default reward/all/mean");
            flags.choice(arguments->over, "--over", {"step", "time"}, "the horizontal axis");
            flags.text(arguments->query.tenant, "--tenant", "NAME", "only this tenant");
            flags.flag(arguments->query.each, "--each",
                       "draws each run by itself, also the seeds of one configuration");
            flags.integer(arguments->query.smooth, "--smooth", "N",
                          "each point is the mean of the last N; default 1", 1, kSmoothMax);
            flags.text(arguments->svg, "--svg", "FILE", "also draws into this SVG file");
            flags.flag(arguments->json, "--json", "prints JSON, with every point");
          },
          [arguments] { return run_compare_runs(*arguments); }};
}

}  // namespace primerl
