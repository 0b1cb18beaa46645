/// The internals of a CafExecutor (its manual is in caf_executor.h): groups in their cells, the
/// phases of a run, and the watchdog.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <vector>

#include "runtime/exec/arrival_check.h"
#include "runtime/exec/caf_actors.h"
#include "runtime/exec/caf_executor.h"
#include "runtime/exec/caf_group.h"
#include "runtime/exec/caf_timers.h"
#include "runtime/exec/drain.h"
#include "runtime/exec/handler_watch.h"
#include "runtime/exec/pending_changes.h"

namespace primerl {

class CafExecutor::Core final : private CellOwner {
 public:
  explicit Core(CafExecutorSetup setup);
  ~Core() override;

  Status prepare();
  void go();
  void resume();
  std::vector<PeerChange> returns_for(GroupId group) const;
  void cut(uint64_t number);
  bool is_live() const;
  Status arrive(ProcessId from, MessageBatch&& batch);
  void finish(RunEnd end);
  void peer_down(ProcessId process, uint32_t incarnation);
  Status peer_up(ProcessId process, uint32_t incarnation, const std::function<Status()>& join);
  StallReport stall_report() const;
  void request_drain();
  void set_aside(TenantSlot tenant);
  void command(const ActorCommand& command);
  Status change_tenant(const TenantChange& change);
  void drain_tenant(TenantSlot slot);
  uint64_t num_steps_of(TenantSlot slot) const;
  void request_stop();
  RunOutcome wait();
  RunStatus status() const;
  std::vector<GroupView> views() const;
  ProcessLoad load() const;
  bool has_lost_threads() const;
  /// Ends groups that still run and collects the ledger. Idempotent.
  void shut_down();

 private:
  enum class Phase { kNew, kRunning, kDraining, kEnding, kEnded };
  /// The step of a group that follows a record, and the time of its last sign of progress.
  struct FollowedStep {
    uint64_t num_steps = 0, num_progress = 0;
    Time since;
  };

  // caf_executor.cc
  Status make_shared_resources();
  Status check_process() const;
  Status start_groups();
  void spawn(const std::shared_ptr<GroupCell>& cell);
  void begin_drain(RunEnd end);
  void end(RunEnd end, Status status, StallReport stall = {});
  Status collect_ended();
  Error not_stopped(const ActorGroup& group) const;
  std::vector<EdgeLedger> ledger() const;

  /// In a graph whose tenants change, the group of a free slot may get an actor that blocks.
  bool has_own_thread(GroupId group) const { return setup_.plan->group(group).own_thread; }

  // caf_watch.cc, and watch_slots() in caf_tenants.cc: on the timer thread
  void watch_saves(Time now);
  void watch_slots(Time now);
  void watch();
  void watch_handlers(Time now, bool is_draining);
  void watch_stall(Time now);
  void watch_record(Time now);
  Error stuck_in_record(const GroupView& view, Duration lasts) const;
  void watch_drain(Time now);
  void abandon(GroupCell& cell, const GroupView& view, Time now, bool is_draining);
  Duration handler_limit(const ActorGroup& group) const;

  // caf_remote.cc
  void send_to_process(MessageBatch&& batch);
  void notify_peers(ProcessId process, bool is_up, uint32_t incarnation);
  std::atomic<uint32_t>& known_incarnation(GroupId group, ProcessId process) {
    return known_incarnations_[group.index() * live_incarnations_.size() + process.index()];
  }
  void note_idle_since(bool is_waiting);
  void add_idle_time(RunStatus& status) const;

  // CellOwner
  void deliver(MessageBatch&& batch) override {
    const auto& cell = cells_[batch.to.index()];
    cell != nullptr ? cell->push(std::move(batch)) : send_to_process(std::move(batch));
  }
  void arm(GroupId group, Time at) override { timers_->arm(group, at); }
  void tenant_finished(TenantSlot tenant, uint32_t tenancy) override;
  void tenant_failed(TenantSlot tenant, uint32_t tenancy, std::string why) override;
  void group_failed(GroupId group, Error error) override;
  void batch_refused(GroupId group, GroupId from, const Error& why) override;
  void group_started(GroupId group, Status status) override;
  void group_ended(GroupId group) override;
  void group_caught_up(GroupId group) override;
  void group_idle() override { timers_->notice(); }
  bool is_stopping() const override { return is_stopping_.load(std::memory_order_relaxed); }
  void peer_changed(GroupId group, const PeerChange& change) override;
  void tenant_changed(GroupId group, const TenantChange& change, Status status) override;
  void command_answered(CommandAnswer answer) override {
    if (setup_.on_command != nullptr) setup_.on_command(answer);
  }

  // Constant after start().
  const CafExecutorSetup setup_;
  RunClock clock_;
  const std::shared_ptr<const Wiring> wiring_;
  const ArrivalCheck arrival_check_;
  HandlerWatch handler_watch_;                               // called on the timer thread
  std::vector<std::shared_ptr<Resource>> shared_resources_;  // by resource index; null if owned
  std::vector<std::shared_ptr<GroupCell>> cells_;            // by GroupId; null in other processes
  std::vector<GroupCell*> here_;                             // cells of this process
  std::unique_ptr<CafActors> actors_;
  std::unique_ptr<CafTimers> timers_;

  std::atomic<bool> is_stopping_{false};
  std::atomic<bool> has_lost_threads_{false};
  std::atomic<bool> is_waiting_{false}, has_alarm_{false};
  std::atomic<int64_t> idle_since_ns_{0};

  // Incarnations of the other processes. Two numbers per process: that of the connected process (0:
  // none; guarded by connections_mutex_), and the one that each group here has been notified of. A
  // batch is dropped unless the two are equal.
  std::shared_mutex connections_mutex_;
  std::vector<uint32_t> live_incarnations_;
  std::vector<std::atomic<uint32_t>> known_incarnations_;  // by group, then by process

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  Phase phase_ = Phase::kNew;
  RunEnd drained_end_ = RunEnd::kFinished;  // the end of the run if the drain succeeds
  Time draining_since_;
  std::set<TenantSlot> finished_;
  PendingChanges changes_;
  std::map<TenantSlot, SlotDrain> slot_drains_;
  std::set<TenantSlot> num_abandoned_of_left_;  // slots whose stuck handlers are those of a tenant
                                                // that has left
  SetAside set_aside_;  // for a run of one process; otherwise the control plane keeps it
  std::vector<std::optional<Status>> started_;  // by GroupId
  std::vector<bool> ended_;                     // by GroupId
  size_t num_followed_ = 0;                     // groups that reached the end of their record
  bool is_live_ = true;
  RunOutcome outcome_;

  // Used by the timer thread only.
  uint64_t last_steps_ = 0;
  Time last_activity_;
  Time last_change_;
  uint64_t last_bytes_saved_ = 0;
  Time last_saved_;  // when the bytes grew
  DrainDetector drain_;
  std::map<GroupId, FollowedStep> followed_;
  std::map<TenantSlot, int64_t> num_abandoned_;  // key none: shared by all tenants
};

}  // namespace primerl
