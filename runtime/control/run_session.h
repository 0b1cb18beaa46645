/// RunSession: the control plane of one start of a run, from the launch to the end of the last
/// worker. It only joins the parts and runs the loop:
///
///   RunLauncher      starts processes                                  run_launcher.h
///   RunMonitor       watches them and decides what happens next        run_monitor.h
///   StatusPublisher  shows and writes what they report                 status_publisher.h
///
/// One thread, which must live as long as the run, because workers die with it. The first Ctrl-C
/// drains, the second stops, the third kills.
#pragma once

#include <memory>
#include <string>

#include "graph/plan.h"
#include "runtime/control/control_api.h"
#include "runtime/control/run_hosts.h"
#include "runtime/control/run_launcher.h"
#include "runtime/control/run_lifecycle.h"
#include "runtime/control/run_monitor.h"
#include "runtime/control/run_preparation.h"
#include "runtime/control/status_publisher.h"
#include "runtime/monitor/metrics_log.h"
#include "runtime/monitor/status_line.h"
#include "runtime/monitor/status_store.h"
#include "runtime/store/run_folder.h"
#include "runtime/transport/peer_keys.h"

namespace primerl {

/// How often a session checks its workers and the terminal at least. A message of a worker and a
/// request of a person are handled at once.
inline constexpr Duration kSessionTick = Duration::milliseconds(100);

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
  /// `store` gets the data for /metrics and /status. All arguments must stay valid while the
  /// session exists.
  RunSession(const Plan& plan, RunFolder& folder, const ResumeChoice& resume, StatusLine& status,
             const PeerKeyFiles& peer_keys, StatusStore& store);
  /// These agents start the processes of other machines. Call before run(). `is_again`: the run is
  /// resumed after a death.
  void use_hosts(const MachineSetup& hosts, bool is_again) {
    host_setup_ = &hosts;
    is_again_ = is_again;
  }
  /// The control API of a run that is served. Call before run(); it must stay valid.
  void use_control(ControlApi& control) { control_ = &control; }
  /// Runs everything from the launch to the end of the last worker. Opens the metrics files first.
  /// The caller must keep a SignalCounter alive meanwhile.
  RunResult run();
  /// The metrics of this start; null when the files could not be opened.
  const MetricsLog* metrics() const { return publisher_.metrics(); }
  /// Whether an actor has made a step, so that there is something to look at or to resume.
  bool has_begun() const { return publisher_.has_begun(); }
  /// Whether a signal ended a process that the run needed. The process's log may say why.
  bool was_killed() const { return monitor_ != nullptr && monitor_->was_killed(); }

 private:
  Status launch();
  void watch();
  RunResult ended(RunEnding ending, double began) const;

  const Plan& plan_;
  RunFolder& folder_;
  const ResumeChoice& resume_;
  const PeerKeyFiles& peer_keys_;
  const MachineSetup* host_setup_ = nullptr;
  bool is_again_ = false;
  ControlApi* control_ = nullptr;  // null: there is none

  std::shared_ptr<ControlInbox> inbox_;
  CommandInbox commands_;  // requests of persons
  StatusPublisher publisher_;
  std::unique_ptr<RunLauncher> launcher_;  // destroyed after the workers
  std::unique_ptr<RunMonitor> monitor_;    // owns the workers
};

}  // namespace primerl
