/// StatusPublisher: everything that a person or a program sees of one start of a run:
///
///   the terminal      the status line, warnings and errors of all processes
///   run.json          how the run started, its processes, their memory     (RunFolder)
///   metrics.jsonl     the steps of all trainers, also for TensorBoard      (MetricsLog)
///   alarms.jsonl      alarms that the steps raise                          (MetricsLog)
///   logs/run.jsonl    the log lines of all processes, in one file
///   /metrics, /status through the StatusStore, which `ps` reads too
///
/// It decides nothing about the run: the RunMonitor does, and calls it. A disk that refuses metrics
/// is reported to the caller. For other files the error is dropped, because a disk that refuses
/// them also refuses metrics.jsonl.
///
/// Owned by the RunSession. One thread. Reads no clock but for wall-clock times in files.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "runtime/control/launch.h"
#include "runtime/control/run_preparation.h"
#include "runtime/control/run_start.h"
#include "runtime/control/warning_filter.h"
#include "runtime/monitor/metrics_log.h"
#include "runtime/monitor/status_line.h"
#include "runtime/monitor/status_store.h"
#include "runtime/store/line_file.h"
#include "runtime/store/run_folder.h"
#include "runtime/store/step_lines.h"

namespace primerl {

/// One started process, for run.json.
struct StartedProcess {
  ProcessId process;
  uint32_t incarnation = 1;
  int64_t pid = 0;
};

class StatusPublisher {
 public:
  /// All arguments must stay valid while the publisher exists.
  StatusPublisher(const Plan& plan, RunFolder& folder, const ResumeChoice& resume,
                  StatusLine& terminal, StatusStore& store)
      : plan_(plan),
        folder_(folder),
        resume_(resume),
        terminal_(terminal),
        store_(store),
        is_served_(is_served(folder)) {}

  /// Writes the facts of the start and opens the metrics. Call it first, once.
  Status open(const RunStart& start);
  /// Null before open() succeeded.
  const MetricsLog* metrics() const { return metrics_.get(); }
  StatusStore& store() { return store_; }

  /// Shows a line that the end of the run does not repeat (has_shown()).
  void say(const std::string& line);
  /// Shows a line that the end of the run may repeat.
  void note(const std::string& line) { terminal_.say(line); }
  /// Whether the first line of `text` was shown by say().
  bool has_shown(const std::string& text) const;
  /// The run has made a step: from now on it is `runs/latest`, unless it only evaluates. Repeated
  /// is harmless.
  void begin();
  bool has_begun() const { return has_begun_; }
  /// One line for each kind of warning that was not shown each time.
  void note_hidden_warnings();

  /// Writes a line of a process to logs/run.jsonl, and shows it if it is a warning or an error.
  void show_log(ProcessId process, const LogLine& line);
  /// Writes the steps that a process has reported since the last call to the metrics.
  struct Published {
    size_t num_steps = 0;  // of tenants of this run
    Status fault;          // the disk refused a step
  };
  Published publish_steps(ProcessId process, Time now);
  /// All steps of the process were published: removes their file.
  void remove_steps(ProcessId process);
  /// Call at each generated first token; only the first one of the run counts.
  void note_first_token();
  /// Writes the list of processes: after a crash `ps` asks the system whether they still live.
  /// `sockets`: the folder of their sockets; "" for a run of one process.
  Status note_processes(const std::vector<StartedProcess>& started, const std::string& sockets);
  /// Writes the peak memory of each process, beside the memory that the plan expects. `exits`: by
  /// process; none for a process that is not known to have ended.
  void note_memory(const std::vector<std::optional<ProcessExit>>& exits);
  /// The tenants of a run that is served, by name. Call it when they have changed.
  void show_tenants(const std::vector<ServedTenant>& tenants);
  /// All workers have followed their records. `recovered`: the sum of their reports.
  void note_recovered(const RunRecovered& recovered);
  /// `phase`: RunLifecycle::phase_text().
  void show(Time now, const std::string& phase);

  /// The table over all processes, if there are several. A single process has already reported its
  /// own table.
  std::string stall_table(const RunEnded& ended) const;

 private:
  TenantSlot slot_of(const std::string& tenant) const;
  std::pair<std::string, int64_t> shown_tenant() const;
  void publish_step(const StepLine& line, Time now, Published& published);
  /// Shows the alarms that the tenant's newest line raised or ended.
  void publish_alarms(const std::string& tenant);
  void merge_log(ProcessId process, const LogLine& line);
  std::string speaker(ProcessId process, const std::string& instance) const;

  const Plan& plan_;
  RunFolder& folder_;
  const ResumeChoice& resume_;
  StatusLine& terminal_;
  StatusStore& store_;

  RunStart start_;
  std::unique_ptr<MetricsLog> metrics_;
  std::vector<StepReader> steps_;         // by process
  std::unique_ptr<LineFile> merged_log_;  // null until the first line of several processes
  WarningFilter warnings_;
  std::string shown_;  // lines of say()
  bool has_begun_ = false, has_first_token_ = false;
  TenantSlot shown_tenant_ = TenantSlot(0);  // the tenant of the newest step
  const bool is_served_;
  // In a served run: the tenants that have a slot, by name in files.
  std::map<std::string, TenantSlot> slots_;
  std::map<std::string, int64_t> max_steps_;
};

/// Generated tokens per second that were trained on: the step's tokens divided by its duration.
double generated_tokens_per_second(const StepFacts& step);

}  // namespace primerl
