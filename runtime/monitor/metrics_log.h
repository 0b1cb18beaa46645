/// MetricsLog: receives the numbers of every trainer step. It writes metrics.jsonl and TensorBoard,
/// and keeps the newest values for the status line and the summary.
///
/// Lives in the control plane, on one thread. One flat JSON object per line:
///   {"step": 12, "time": 3.214, "tenant": "main", "reward/all/mean": 0.61, ...}
/// `time` is seconds since the start of the run (since its first start, if it was resumed). A step
/// that a resumed run makes again replaces its line.
///
/// Evaluations have lines of their own, with names that begin with "eval/"; `step` is the version
/// that was measured. So have the numbers of environments that drive rollouts ("env/"); `step` is
/// the one that trained these rollouts. Lines that begin with "waiting/" say what happened since
/// step `step` while no further one was made. They are no steps: status line, curve and resume
/// ignore them.
///
/// Alarms are computed from the lines (run_alarms.h) and written to alarms.jsonl, a line each. That
/// file is a function of metrics.jsonl: where steps are made again, it is written again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/monitor/run_alarms.h"
#include "runtime/monitor/tensorboard.h"
#include "runtime/store/line_file.h"
#include "runtime/store/run_folder.h"

namespace primerl {

/// The values of one step of one tenant that the terminal shows.
struct StepFacts {
  int64_t step = 0;
  double time = 0;  // seconds since the start
  MetricValues values;
  /// The value of a metric, or `missing`.
  double get(std::string_view name, double missing = 0) const;
};

enum class MetricsKind : uint8_t { kStep, kEvaluation, kEnvironment, kWaiting };
inline constexpr std::string_view kWaitingPrefix = "waiting/";
/// What these are the numbers of, by the name of the first.
MetricsKind kind_of(const MetricValues& values);

/// The step of each tenant's last line of a step: the position of the newest start.
Result<std::map<std::string, int64_t>> newest_steps(const std::filesystem::path& metrics_file);

class MetricsLog {
 public:
  /// `wall_time`: time 0 as seconds since 1970. `has_tenants`: tags have the tenant's name.
  /// `bounds`: of the alarms. `score`: the metric of the status line and of the curve.
  static Result<std::unique_ptr<MetricsLog>> open(const RunFolder& folder, double wall_time,
                                                  bool has_tenants, const AlarmSettings& bounds,
                                                  std::string score = "reward/all/mean");
  /// For a run that is resumed from its record. Steps that metrics.jsonl already has are only kept
  /// in memory when they are repeated, not written again. `last_steps`: the last followed step of
  /// each tenant. Lines of later steps are removed when the first later step is written. Call it
  /// before the first write().
  Status skip_written(const std::map<std::string, int64_t>& last_steps);
  /// For a run that is resumed from checkpoints: the step of each tenant's checkpoint. Lines of
  /// later steps are removed when the first later step is written. Call it before the first
  /// write().
  Status replace_later(const std::map<std::string, int64_t>& checkpoints);
  /// `time`: seconds since time 0. The first error is permanent.
  Status write(const std::string& tenant, int64_t step, double time, const MetricValues& values);

  /// Most tenants that have left and are still in memory.
  static constexpr size_t kLeftMax = 32;
  /// The tenants of a run that is served, by the names of their lines. Others stay in memory if
  /// they are among the kLeftMax that made a step last; files keep all.
  void keep(const std::set<std::string>& present);

  /// The newest step of a tenant, null before the first.
  const StepFacts* newest(const std::string& tenant) const;
  /// The newest evaluation of a tenant in this start, null before the first.
  const StepFacts* newest_evaluation(const std::string& tenant) const;
  /// The score of every step of this start, in step order.
  const std::vector<double>& scores(const std::string& tenant) const;
  /// Average time from step to step in this start; 0 before the second.
  double seconds_per_step(const std::string& tenant) const;
  size_t num_lines() const { return num_lines_; }
  /// The alarms of the whole run, also of earlier starts.
  const AlarmHistory& alarms() const { return alarms_; }
  /// Those that were raised or ended since the last call.
  std::vector<AlarmChange> take_alarm_changes() { return std::exchange(new_changes_, {}); }

 private:
  Status write_line(const std::string& tenant, int64_t step, double time,
                    const MetricValues& values);
  Status remove_later(const std::string& tenant, int64_t step);
  void forget(const std::string& tenant);
  /// Computes alarms and alarms.jsonl again from metrics.jsonl.
  Status read_alarms();
  Status update_alarms(const std::string& tenant, int64_t step, double time,
                       const MetricValues& values);

  MetricsLog(const RunFolder& folder, std::unique_ptr<LineFile> lines,
             std::unique_ptr<TensorBoardFile> board, double wall_time, bool has_tenants,
             const AlarmSettings& bounds, std::string score);

  const std::filesystem::path file_;
  std::unique_ptr<LineFile> lines_;
  const std::unique_ptr<TensorBoardFile> board_;
  const double wall_time_;
  const bool has_tenants_;
  const std::string score_;
  size_t num_lines_ = 0;
  std::map<std::string, int64_t> written_;  // by tenant: the last step that is not written again
  std::map<MetricsKind, std::map<std::string, int64_t>> reported_;  // the same for other lines
  std::set<std::string> has_later_;  // tenants with lines of later steps, to be removed
  Status fault_;
  std::map<std::string, StepFacts> newest_;
  std::map<std::string, StepFacts> newest_evaluation_;
  std::map<std::string, double> first_time_;
  std::map<std::string, std::vector<double>> scores_;
  AlarmHistory alarms_;
  const AlarmSettings bounds_;
  std::vector<AlarmChange> new_changes_;
  const std::filesystem::path alarms_file_;
  std::unique_ptr<LineFile> alarm_lines_;  // null until the first alarm
};

}  // namespace primerl
