/// Compares the metrics of several runs: curves over steps or time, with the seeds of one
/// configuration together, and the options in which the runs differ.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/base/result.h"
#include "runtime/monitor/chart.h"
#include "runtime/monitor/metric_series.h"

namespace primerl {

inline constexpr size_t kComparedRunsMax = kChartLinesMax;
inline constexpr size_t kComparedMetricsMax = 8;
/// A mean of this many points stands for the first and for the last value of a curve.
inline constexpr size_t kEndPoints = 5;

struct CompareQuery {
  std::vector<std::string> runs;     // folders
  std::vector<std::string> metrics;  // empty: reward/all/mean, or loss/mean without rewards
  std::string tenant;                // "": all
  bool over_time = false;            // instead of over steps
  bool each = false;                 // the seeds of a configuration are not put together
  int64_t smooth = 1;                // each point is the mean of so many
};

/// One run as its folder has it.
struct ComparedRun {
  std::string name;                           // as it was given
  std::map<std::string, std::string> values;  // of its graph, by key
  std::map<std::string, TenantSeries> tenants;

  std::string seed() const;
  /// The same for runs that differ only in graph.seed.
  std::map<std::string, std::string> configuration() const;
};

/// The runs of one configuration, one tenant of them.
struct ComparedCurve {
  std::string name;          // "runs/a", "runs/a and 2 more", "runs/a, tenant main"
  std::vector<size_t> runs;  // indices
  std::string tenant;
};

/// Numbers of one curve in one chart. With several runs the medians of their numbers.
struct CurveNumbers {
  size_t num_runs = 0;    // that have the metric
  int64_t last_step = 0;  // largest
  double last_time = 0;   // seconds, largest
  double first = 0, last = 0;
  double last_low = 0, last_high = 0;  // smallest and largest `last` of the runs
};

struct ComparedMetric {
  Chart chart;                        // a line for each curve
  std::vector<CurveNumbers> numbers;  // of each curve; num_runs 0: it has no such metric
};

/// An option that the graphs of the runs do not share.
struct OptionDifference {
  std::string key;
  std::vector<std::string> values;  // of each run, as TOML; "": not written
};

struct RunComparison {
  std::vector<ComparedRun> runs;
  std::vector<ComparedCurve> curves;
  std::vector<ComparedMetric> metrics;
  std::vector<OptionDifference> differences;
  std::vector<std::string> notes;  // curves without a metric
};

/// Reads the folders. kNotFound: no run, or a run without a step; kCorrupt: an unreadable file.
Result<std::vector<ComparedRun>> read_compared_runs(const CompareQuery& query);
/// kInvalid: no run has the metric or tenant, or there are more than kChartLinesMax curves.
Result<RunComparison> compare_runs(std::vector<ComparedRun> runs, const CompareQuery& query);

/// The unit of a metric by its name: "nats", "tokens/s"; "" for a plain number.
std::string_view unit_of_metric(std::string_view name);

}  // namespace primerl
