/// RunSession: the control plane of one run. It starts the workers, shows and writes what they
/// report, handles Ctrl-C, and returns how the run ended.
///
/// One thread, which must live as long as the run, because workers die with it. The first Ctrl-C
/// drains, the second stops, the third kills.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "runtime/control/pause_controller.h"
#include "runtime/control/restart_budget.h"
#include "runtime/control/run_coordinator.h"
#include "runtime/control/run_hosts.h"
#include "runtime/control/run_lifecycle.h"
#include "runtime/control/run_preparation.h"
#include "runtime/control/warning_filter.h"
#include "runtime/monitor/metrics_log.h"
#include "runtime/monitor/status_line.h"
#include "runtime/monitor/status_store.h"
#include "runtime/store/command_box.h"
#include "runtime/store/line_file.h"
#include "runtime/store/run_folder.h"
#include "runtime/store/socket_folder.h"
#include "runtime/store/step_lines.h"
#include "runtime/transport/peer_keys.h"

namespace primerl {

/// How often a session checks its workers and the terminal.
inline constexpr Duration kSessionTick = Duration::milliseconds(100);
/// The time that a worker may need from its last message to its exit.
inline constexpr Duration kExitMax = Duration::seconds(10);

/// How a start ended, for the summary and for run.json.
struct RunResult {
  RunEnding ending;
  bool was_said = false;  // the terminal has already shown `ending.why`
  double seconds = 0;
  int exit_code() const;
  /// "finished", "interrupted", "failed" or "stalled".
  std::string end() const;
};

class RunSession {
 public:
  /// `board` gets the data for /metrics and /status. All arguments must stay valid while the
  /// session exists.
  RunSession(const Plan& plan, RunFolder& folder, const ResumeChoice& resume, StatusLine& status,
             const PeerKeyFiles& peer_keys, StatusStore& board);
  /// These agents start the processes of other machines. Call before run(). `is_again`: the run is
  /// resumed after a death.
  void use_hosts(const MachineSetup& hosts, bool is_again) {
    host_setup_ = &hosts;
    is_again_ = is_again;
  }
  /// Runs everything from the launch to the end of the last worker. Opens the metrics files first.
  /// The caller must keep a SignalCounter alive meanwhile.
  RunResult run();
  /// The metrics of this start; null when the files could not be opened.
  const MetricsLog* metrics() const { return metrics_.get(); }
  /// Whether an actor has made a step, so that there is something to look at or to resume.
  bool has_begun() const { return has_begun_; }
  /// Whether a signal ended a process that the run needed. The process's log may say why.
  bool was_killed() const { return was_killed_; }

 private:
  struct Worker {
    std::unique_ptr<WorkerProcess> process;
    std::optional<RunEnded> ended;
    bool is_closed = false;
    Status closed;
    Time heard_at;
    bool has_spoken = false;   // this incarnation has sent a message
    bool was_silent = false;   // was silent for too long and was killed
    bool died_at_end = false;  // died at the end, when it was not needed any more
    uint32_t incarnation = 1;
    std::optional<StepReader> steps;
    std::optional<RestartBudget> restarts;
    std::optional<Time> restart_at;  // it has died and will be restarted then
  };

  Status open_files();
  Status launch_workers();
  Status connect_hosts();
  Status launch_worker(size_t index);
  LaunchOptions launch_options(size_t index) const;
  void watch_agents();
  std::vector<std::string> checkpoints_for(const Worker& worker) const;
  bool can_restart(ProcessId process) const;
  bool plan_restart(ProcessId process);
  bool is_needed(ProcessId process);
  void restart_due();
  Error error_of_early_death(Worker& worker, const ControlEvent& event);
  void lose(ProcessId process);
  std::string memory_advice(size_t index) const;
  void note_memory();
  std::string death_of(size_t index);
  void watch();
  void handle(const ControlEvent& event);
  void begin();
  void say(const std::string& line);
  void show_log(ProcessId process, const LogLine& line);
  void merge_log(ProcessId process, const LogLine& line);
  void take_steps(Worker& worker);
  void write_metrics(const StepLine& line);
  void fail_to_write(const Error& why);
  Status keep_leftover_steps() const;
  void note_first_token();
  void note_recovered(const RunRecovered& recovered);
  void apply_signals();
  void watch_silence();
  void act(RunLifecycle::Action action, const std::string& reason);
  void count_signals();
  void tell(ProcessId to, Payload message);
  void kill_all();
  void show_status();
  bool all_closed() const;
  Status check_end() const;
  RunResult result();
  RunResult ended(RunEnding ending) const;
  RunResult failed(const Error& why) const;
  void tell_changed_plugins();
  Status note_start();
  Json resumes() const;
  std::string fresh_run_id() const;
  std::string run_id() const;
  // run_watch.cc
  void apply_commands();
  std::string why_no_command() const;
  Status note_workers();
  void tell_watchers(const ControlEvent& event);
  std::string stall_table(const RunEnded& ended) const;
  std::string speaker(ProcessId process, const std::string& instance) const;

  const Plan& plan_;
  RunFolder& folder_;
  const ResumeChoice& resume_;
  const std::vector<ResumePoint>& points_;  // refers into resume_
  StatusLine& terminal_;
  const PeerKeyFiles& peer_keys_;
  StatusStore& board_;

  const MachineSetup* host_setup_ = nullptr;
  bool is_again_ = false;

  std::shared_ptr<ControlInbox> inbox_;
  CommandInbox commands_;            // requests of persons
  std::unique_ptr<RunHosts> hosts_;  // null without other machines; destroyed after the workers
  std::vector<Worker> workers_;
  std::unique_ptr<RunCoordinator> coordinator_;
  PauseController pauses_;                 // pauses of engines
  Status coordination_;                    // the first fault of the whole run
  std::unique_ptr<SocketFolder> sockets_;  // null for a run of one process
  std::unique_ptr<LineFile> merged_log_;   // null for a run of one process
  std::unique_ptr<MetricsLog> metrics_;
  uint32_t incarnation_ = 1;  // of this start, and of each worker's first incarnation
  double wall_start_ = 0;     // wall-clock time of this start
  double wall_zero_ = 0;      // wall-clock time of the run's first start
  RunLifecycle lifecycle_;
  int num_signals_applied_ = 0;
  bool has_begun_ = false, was_killed_ = false;
  bool has_first_token_ = false;
  size_t num_recovered_ = 0;  // workers that have followed their records
  RunRecovered recovered_;    // the sum of their reports
  std::string said_;          // warnings and errors shown so far
  WarningFilter warnings_;
  TenantSlot shown_tenant_ = TenantSlot(0);
  Time last_turn_;  // time of the last watch()
};

/// Whether the graph has no engine: then the status line shows the loss instead of a reward.
bool is_supervised(const Plan& plan);

/// Generated tokens per second that were trained on: the step's tokens divided by its duration.
double generated_tokens_per_second(const StepFacts& step);

}  // namespace primerl
