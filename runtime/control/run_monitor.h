/// RunMonitor: watches the processes of one start of a run and decides what happens next. It starts
/// them together, forwards their messages, kills a silent one, restarts one that died if the run
/// can continue without it, and ends the run otherwise.
///
///   launch() -> handle() and the checks, until is_connecting() is false
///            -> on_launched() -> handle(), apply_signals(), tick(), until all_closed() -> end()
///
/// It joins the state machines of a run: RunCoordinator (common start and end), RunLifecycle (the
/// phase, and what a fault means in it), RestartBudget (per process), PauseController, and in a run
/// that is served TenantControl. The StatusPublisher shows and writes what a person sees.
///
/// Owned by the RunSession. One thread. It starts processes only through the WorkerStarter, and
/// reads no clock but the given one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "runtime/control/pause_controller.h"
#include "runtime/control/restart_budget.h"
#include "runtime/control/run_coordinator.h"
#include "runtime/control/run_lifecycle.h"
#include "runtime/control/run_preparation.h"
#include "runtime/control/status_publisher.h"
#include "runtime/control/tenant_control.h"
#include "runtime/control/worker_starter.h"
#include "runtime/store/command_box.h"

namespace primerl {

/// The time that a worker may need from its last message to its exit.
inline constexpr Duration kExitMax = Duration::seconds(10);

class RunMonitor {
 public:
  using Clock = std::function<Time()>;

  /// `plan`, `resume`, `folder`, `starter` and `publisher` must stay valid while the monitor
  /// exists. `answer` gets the answers to requests of persons.
  RunMonitor(const Plan& plan, const ResumeChoice& resume, const RunFolder& folder,
             const RunStart& start, WorkerStarter& starter, StatusPublisher& publisher,
             PauseController::Answer answer, Clock clock);

  // The launch ------------------------------------------------------------------------------------

  /// Starts every process. `sockets`: the folder of their sockets; "" for a run of one process.
  Status launch(const std::string& sockets);
  /// Whether some process has not sent its hello, or is not connected to the others.
  bool is_connecting() const { return coordinator_.phase() <= RunCoordinator::Phase::kConnecting; }
  /// After handle(event) while is_connecting(): an Error if that event ends the launch.
  Status check_launch(const ControlEvent& event);
  /// Between events while is_connecting(): an Error if an agent is lost, or a process sent a wrong
  /// hello.
  Status check_agents();
  /// kDeadline when it is later than `give_up`; the error names the processes that are awaited.
  Status check_deadline(Time give_up) const;
  /// All processes are connected: from now on silence counts.
  void on_launched();

  // The run ---------------------------------------------------------------------------------------

  void handle(const ControlEvent& event);
  /// Requests to stop so far (SignalCounter::count()).
  void apply_signals(int num_signals);
  /// Applies requests of persons.
  void apply_commands(std::span<const CommandInbox::Ask> requests);
  /// Publishes the steps that all processes have reported.
  void publish_steps();
  /// Call it regularly: deadlines of agents, silent workers, drains and restarts.
  void tick();
  /// The time until tick() or apply_commands() has something to do; `most` if that is later.
  Duration time_to_next(Duration most) const {
    return tenants_ == nullptr ? most : tenants_->time_to_next(most, clock_());
  }
  /// Whether every process has ended and none will be restarted.
  bool all_closed() const;
  void kill_all();

  // The end ---------------------------------------------------------------------------------------

  /// The launch failed. `num_signals`: as above, with those that came too late to react to.
  RunEnding end_of_launch(const Error& why, int num_signals);
  /// After all_closed(): waits for the processes, and says how the run ended.
  RunEnding end(int num_signals);

  const RunLifecycle& lifecycle() const { return lifecycle_; }
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
    std::optional<RestartBudget> restarts;
    std::optional<Time> restart_at;  // it has died and will be restarted then
  };

  // Processes
  Status launch_worker(ProcessId process);
  void close(const ControlEvent& event);
  void handle_message(const ControlEvent& event);
  bool can_restart(ProcessId process) const;
  bool plan_restart(ProcessId process);
  void restart_due();
  bool is_needed(ProcessId process);
  void lose(ProcessId process);
  void watch_agents();
  void watch_silence();
  Status note_processes();
  // The run
  void act(RunLifecycle::Action action, const std::string& reason);
  void send(ProcessId to, Payload message);
  void publish_steps(ProcessId process);
  void count_recovered(const RunRecovered& recovered);
  void make_tenants();
  void open_tenants();
  void handle_of_tenants(const ControlEvent& event);
  void describe(const HostedTenant& tenant, Json& picture) const;
  void show_tenants();
  void cannot_write(const Error& why);
  std::string why_no_tenant() const;
  std::string why_no_command() const;
  // The end
  void count_signals(int num_signals);
  Status check_end() const;
  Error error_of_early_death(const ControlEvent& event);
  std::string memory_advice(ProcessId process) const;
  std::string death_of(ProcessId process);
  std::string reports_of_workers(bool& is_stalled);
  void note_memory();

  Worker& worker(ProcessId process) { return workers_[process.index()]; }

  const Plan& plan_;
  const ResumeChoice& resume_;
  const RunFolder& folder_;
  const PauseController::Answer answer_;
  WorkerStarter& starter_;
  StatusPublisher& publisher_;
  const Clock clock_;
  std::string sockets_;  // set by launch()

  std::vector<Worker> workers_;  // by process
  RunCoordinator coordinator_;
  PauseController pauses_;                  // pauses of engines
  std::unique_ptr<TenantControl> tenants_;  // null: the run is not served
  bool has_open_tenants_ = false;           // the processes get orders about tenants
  RunLifecycle lifecycle_;
  Status coordination_;  // the first fault of the whole run
  int num_signals_applied_ = 0;
  bool was_killed_ = false;
  size_t num_recovered_ = 0;  // workers that have followed their records
  RunRecovered recovered_;    // the sum of their reports
  Time last_look_;            // time of the last watch_silence()
};

}  // namespace primerl
