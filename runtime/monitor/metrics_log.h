/// MetricsLog: where the numbers of every trainer step go: metrics.jsonl, TensorBoard, and the
/// newest values, for the status line and the summary.
///
/// Lives in the control plane, on one thread. One flat JSON object a line:
///   {"step": 12, "time": 3.214, "tenant": "main", "reward/all/mean": 0.61, ...}
/// `time` is seconds since the start of the run (of its first start, when it was resumed). After a
/// resume the steps since the checkpoint come again: the last line of a step counts.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/monitor/tensorboard.h"
#include "runtime/store/line_file.h"
#include "runtime/store/run_folder.h"

namespace primerl {

/// What the terminal needs of one step of one tenant.
struct StepFacts {
  int64_t step = 0;
  double time = 0;  // seconds since the start
  MetricValues values;
  /// The value of a metric, or `missing`.
  double get(std::string_view name, double missing = 0) const;
};

/// The step of each tenant's last line: where the newest start is. (An earlier one, resumed from a
/// checkpoint, may have gone further.)
Result<std::map<std::string, int64_t>> newest_steps(const std::filesystem::path& metrics_file);

class MetricsLog {
 public:
  /// `wall_time`: seconds since 1970 of moment 0. `has_tenants`: tags carry the tenant's name.
  /// `score`: the metric of the status line and of the curve.
  static Result<std::unique_ptr<MetricsLog>> open(const RunFolder& folder, double wall_time,
                                                  bool has_tenants,
                                                  std::string score = "reward/all/mean");
  /// The run is resumed from its record: steps that metrics.jsonl has already are kept in memory
  /// when they come again, not written a second time. `last_steps`: the last one of each tenant
  /// that is followed; lines of later ones are removed when the first of those is taken. Before the
  /// first write().
  Status skip_written(const std::map<std::string, int64_t>& last_steps);
  /// `time`: seconds since moment 0. The first error stays.
  Status write(const std::string& tenant, int64_t step, double time, const MetricValues& values);

  /// The newest step of a tenant, null before the first.
  const StepFacts* newest(const std::string& tenant) const;
  /// The score of every step of this start, in step order.
  const std::vector<double>& scores(const std::string& tenant) const;
  /// Mean time from step to step of this start; 0 before the second.
  double seconds_per_step(const std::string& tenant) const;
  size_t num_lines() const { return num_lines_; }

 private:
  Status remove_later(const std::string& tenant, int64_t step);

  MetricsLog(std::filesystem::path file, std::unique_ptr<LineFile> lines,
             std::unique_ptr<TensorBoardFile> board, double wall_time, bool has_tenants,
             std::string score);

  const std::filesystem::path file_;
  std::unique_ptr<LineFile> lines_;
  const std::unique_ptr<TensorBoardFile> board_;
  const double wall_time_;
  const bool has_tenants_;
  const std::string score_;
  size_t num_lines_ = 0;
  std::map<std::string, int64_t> written_;  // the last step that is not to be written again
  std::set<std::string> has_later_;         // tenants with lines of later steps, to be removed
  std::map<std::string, StepFacts> newest_;
  std::map<std::string, double> first_time_;
  std::map<std::string, std::vector<double>> scores_;
};

}  // namespace primerl
