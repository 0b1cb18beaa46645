/// CafExecutor: runs the groups of one process on real threads and in real time.
///
/// Every actor group is one CAF actor. It runs on the pool, or on its own thread when it has a
/// compute resource or an own_thread actor. Resources are made, used and destroyed on their group's
/// thread. Shared resources (weight channel, tokenizer) use the thread that calls start(). An
/// own_thread handler without resources is abandoned if it shows no progress() for its tenant's
/// environment_timeout. Its thread is replaced, at most abandoned_max times in a run.
///
/// With a ReplaySource, every group first follows its record, as fast as its messages arrive. When
/// the last group reaches its end, all groups resume and the run's clock continues from the
/// recorded end.
///
/// Order at the end: timers stop, every group is destroyed on its own thread, the ledger is
/// collected, the CAF actors are released, the threads are joined. A drain that lasts longer than
/// drain_max, counted from the last byte of a checkpoint, is a stall. If a thread does not return
/// within drain_max, the outcome names it. Everything that thread may still touch is then kept
/// until the process ends, which should be soon (has_lost_threads).
#pragma once

#include <atomic>
#include <cstdint>
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
  uint32_t incarnation = 1;                     // incarnation of this process
  ProcessServices* process_services = nullptr;  // must stay valid while the executor exists; called
                                                // from every group's thread
  ResourceFactory factory;
  DeliveryObserver* observer = nullptr;  // must stay valid while the executor exists; called from
                                         // every group's thread
  ReplaySource* step_source = nullptr;   // for a resumed run; must stay valid while the executor
                                         // exists
  std::optional<Time> begins_at{};       // time of the run at start(), if it is not the steady
                                         // clock's
  std::function<void()> on_live;  // called when all groups reached the end of their record; any
                                  // thread
  /// Set when other processes follow a record too. Called when all groups here reached the end of
  /// their record; they then wait for resume(). Any thread. Null: the groups resume at once.
  std::function<void()> on_followed;
  std::function<void(const CommandAnswer&)> on_command;  // any thread; null: answers are dropped
  /// In a run of one process: called with a tenant that was set aside, the use of its slot or
  /// kTenancyUnknown, and the reason. Any thread. May be null.
  std::function<void(TenantSlot, uint32_t tenancy, const std::string&)> on_set_aside;
  TenantMaker make_tenant{};           // see GroupSetup
  TenantResources tenant_resources{};  // see GroupSetup
  /// TenantChange::begins_at of a tenant that joins; null: 0. Any thread.
  std::function<int64_t(const TenantChange&)> begins_from{};
  ExecutorEvents events{};
  /// In a process that starts again while tenants have joined or left: the changes that made the
  /// slots as they are. They are made before the first input, and not reported. Not with a
  /// step_source.
  std::vector<TenantChange> begins_with{};
  bool is_hosted = false;   // in a run of one process: it continues when all its tenants have
                            // finished, until request_drain()
  CutSink* cuts = nullptr;  // must stay valid while the executor exists; called from every group's
                            // thread; null: no cuts
  OtherProcesses* others = nullptr;  // must stay valid while the executor exists; null: this
                                     // process is the whole run
  /// Bytes that this process has written beside its groups: checkpoints. A drain lasts longer than
  /// drain_max while it grows. Must stay valid while the executor exists; null: nothing is written.
  const std::atomic<uint64_t>* bytes_saved = nullptr;
  /// Incarnations of the other processes, by ProcessId, if they differ from `incarnation`.
  std::vector<std::pair<uint32_t, uint32_t>> peer_incarnations{};
};

class CafExecutor final : public Executor {
 public:
  explicit CafExecutor(CafExecutorSetup setup);
  /// If the run has not ended: stops it and waits.
  ~CafExecutor() override;

  /// prepare() and go().
  Status start() override;
  /// Makes every group: resources, actors, start(). Arriving messages wait. If one group fails, the
  /// others are destroyed.
  Status prepare();
  /// Call when all processes are prepared: groups begin to accept inputs.
  void go();
  /// Call after on_followed: from now on groups choose their own steps. Any thread, once.
  void resume();
  /// Orders every group here to join a cut (process_cut.h). Any thread.
  void cut(uint64_t number);
  /// Whether no group follows a record (any more).
  bool is_live() const;
  void request_drain() override;
  /// In a run of several processes, after prepare(): the control plane reports that `tenant`
  /// failed. The tenant's actors here drain.
  void set_aside(TenantSlot tenant);
  /// Gives a command to every addressed actor of this process. Each answers through
  /// setup.on_command after it handled the command. A group that follows a record gets the command
  /// after it resumed. Call after prepare().
  void command(const ActorCommand& command);
  Status change_tenant(const TenantChange& change) override;
  void drain_tenant(TenantSlot slot) override;
  /// The work of the slot's tenant here: steps of its own groups, and its messages between groups
  /// of this process. While it drains, equal numbers at two times mean that it did nothing between
  /// them. Any thread.
  uint64_t num_steps_of(TenantSlot slot) const;
  void request_stop() override;
  RunOutcome wait() override;
  RunStatus status() const override;

  // In a run of several processes, any thread:
  /// After prepare(): accepts a batch of a group of process `from`, in order per sending group.
  /// Messages that `from` may not send are skipped. Returns the first error, or ok.
  Status arrive(ProcessId from, MessageBatch&& batch);
  /// A process died: groups connected to its groups are notified, and nothing more is sent to it.
  void peer_down(ProcessId process, uint32_t incarnation);
  /// The process runs again as `incarnation`. `join` connects to it; messages sent meanwhile wait
  /// until it returns.
  Status peer_up(ProcessId process, uint32_t incarnation, const std::function<Status()>& join);
  /// The drain of all processes is complete, or the run is: ends this process's part with `end`.
  void finish(RunEnd end);
  StallReport stall_report() const;

  /// Current work and message counts of this process's groups; any thread.
  ProcessLoad load() const;
  /// The current activity of each group of this process; any thread.
  std::vector<GroupView> views() const;
  /// After wait(): whether a handler has not returned. If so, end the process without running
  /// destructors.
  bool has_lost_threads() const;

 private:
  class Core;
  std::unique_ptr<Core> core_;
};

}  // namespace primerl
