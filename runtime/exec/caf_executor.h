/// CafExecutor: runs the groups of one process on real threads and real time.
///
/// Every actor group is one CAF actor: on the pool, or on a thread of its own when it has a compute
/// resource or an own_thread actor. Resources are made, used and destroyed on their group's thread;
/// those that groups share (weight channel, tokenizer) on the thread that calls start(). An
/// own_thread handler without resources that shows no progress() for its tenant's
/// environment_timeout is abandoned, and its thread replaced, abandoned_max times in a run.
///
/// With a ReplaySource every group follows its record first, as fast as the messages allow; when
/// the last one has reached its end, all resume, and the clock of the run goes on from the recorded
/// end.
///
/// Order at the end: timers stop, every group is told to stop and is destroyed on its own thread,
/// the ledger is taken, the CAF actors are released, the threads joined. A thread that does not
/// return within drain_max is named in the outcome; what it may still touch is then kept until the
/// process ends, which should be soon (has_lost_threads).
#pragma once

#include <memory>
#include <optional>

#include "runtime/exec/actor_group.h"
#include "runtime/exec/executor.h"
#include "runtime/exec/other_processes.h"
#include "runtime/exec/replay_source.h"

namespace primerl {

struct CafExecutorSetup {
  std::shared_ptr<const Plan> plan;
  ProcessId process{0};
  uint32_t incarnation = 1;               // incarnation of this process
  HostServices* host_services = nullptr;  // outlives the executor; called from every group's thread
  ResourceFactory factory;
  DeliveryObserver* observer = nullptr;  // outlives the executor; called from every group's thread
  ReplaySource* step_source = nullptr;   // of a resumed run; outlives the executor
  std::optional<Time> begins_at{};       // time of the run, where it is not the steady clock's
  std::function<void()> on_live;  // all groups have followed their record to its end; any thread
  /// When other processes follow a record too: all groups here are at the end, and wait for
  /// resume(). Any thread. Null: they resume at once.
  std::function<void()> on_followed;
  std::function<void(const CommandAnswer&)> on_command;  // any thread; null: nobody wants them
  /// In a run of one process: a tenant was set aside, and why. Any thread; null: nobody asks.
  std::function<void(TenantSlot, const std::string&)> on_set_aside;
  CutSink* cuts = nullptr;  // outlives the executor; called from every group's thread; null: none
  OtherProcesses* others = nullptr;  // outlives the executor; null: this process is the whole run
  /// Incarnations (by ProcessId) of the other processes, where they may differ from `incarnation`.
  std::vector<std::pair<uint32_t, uint32_t>> peer_incarnations{};
};

class CafExecutor final : public Executor {
 public:
  explicit CafExecutor(CafExecutorSetup setup);
  /// Stops and waits if the run has not ended.
  ~CafExecutor() override;

  /// prepare() and go().
  Status start() override;
  /// Makes every group: resources, actors, start(). Arrivals wait. If one fails, the others are
  /// undone.
  Status prepare();
  /// All processes are prepared: groups take inputs.
  void go();
  /// After on_followed: groups choose their own steps from now on. Any thread, once.
  void resume();
  /// Orders every group here to take part in a cut (process_cut.h). Any thread.
  void cut(uint64_t number);
  /// Whether there is no record (any more) to follow.
  bool is_live() const;
  void request_drain() override;
  /// In a run of several processes, once prepared: the control plane says that `tenant` failed. Her
  /// actors here drain.
  void set_aside(TenantSlot tenant);
  /// Gives a command to every actor of this process that it is meant for; each answers through
  /// setup.on_command when it has handled it. A group that follows a record takes it when it has
  /// resumed. Once prepared.
  void command(const ActorCommand& command);
  void request_stop() override;
  RunOutcome wait() override;
  RunStatus status() const override;

  // In a run of several processes, any thread:
  /// After prepare(): a batch of a group of `from`, in order per sending group. Leaves out what
  /// that process may not send: returns the first error, or ok.
  Status arrive(ProcessId from, MessageBatch&& batch);
  /// A process died: its groups' neighbours are told, and nothing more is sent to it.
  void peer_down(ProcessId process, uint32_t incarnation);
  /// It is back as `incarnation`. `join` connects to it; what is sent meanwhile waits for that.
  Status peer_up(ProcessId process, uint32_t incarnation, const std::function<Status()>& join);
  /// The drain of all processes is over, or the run is: ends it with `end`.
  void finish(RunEnd end);
  StallReport stall_report() const;

  /// What the groups of this process do and hold; any thread.
  ProcessLoad load() const;
  /// What each group of this process does now; any thread.
  std::vector<GroupView> views() const;
  /// After wait(): a handler has not returned. End the process without running destructors.
  bool has_lost_threads() const;

 private:
  class Core;
  std::unique_ptr<Core> core_;
};

}  // namespace primerl
