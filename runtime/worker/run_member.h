/// RunMember: one process of a run, from StartRun to its outcome. It is an executor that applies
/// the messages of the control plane (control_messages.h, run_coordinator.h) and answers them.
///
/// A single process accepts inputs as soon as its actor groups are made. A process with peers waits
/// for ConnectPeers before that and for GoRun after it. Decisions over all processes are left to
/// the control plane.
///
/// Making actor groups loads models, which may take minutes, or never end if a driver or a file
/// system hangs. After the order to drain or to stop it may continue for kStartLeftMax. Then its
/// thread is abandoned: nothing was computed that could be lost.
///
/// In a run that is served it gives the orders about tenants to the executor, in the order in which
/// they came, and reports what became of them. Orders that come before the actor groups are made
/// wait; so do those beyond kTenantChangesMax.
///
/// Threads: everything from one thread. `say` is also called from the connections' I/O thread and
/// from actor groups' threads. A separate thread makes the actor groups.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "runtime/exec/caf_executor.h"
#include "runtime/wire/control_messages.h"
#include "runtime/worker/peer_connections.h"

namespace primerl {

class RunMember {
 public:
  using Say = std::function<void(Payload message)>;

  /// Batch systems wait 30 s before they kill. With this limit, a run that must end while it starts
  /// is gone earlier.
  static constexpr Duration kStartLeftMax = Duration::seconds(10);

  /// `executor.others` is set here; `executor.events.tenant_changed` is called before the answer is
  /// sent. `connections` are already open and must stay valid while the
  /// member exists; obey() connects them. Null: the process is the whole run.
  RunMember(CafExecutorSetup executor, PeerConnections* connections, Say say);
  ~RunMember();

  /// Applies one message of the control plane; unknown messages are ignored.
  Status obey(const Payload& message);
  /// Call it regularly: reports that the actor groups are ready, and collects the outcome.
  void poll(Time now);
  /// Ends the run now. Before StartRun: the run does not begin.
  void stop();

  bool has_begun() const { return executor_ != nullptr; }
  bool is_running() const { return running_.valid(); }
  /// Orders a cut (process_cut.h); any thread, while it is running.
  void cut(uint64_t number) {
    if (executor_ != nullptr) executor_->cut(number);
  }
  /// Gives the tenant's trainer in this process a CheckpointRequest, while it is running. A command
  /// is recorded, so a replay begins the checkpoint in the same step.
  void request_checkpoint(TenantSlot tenant, int64_t step);
  /// How the run ended; none while it runs.
  const std::optional<RunOutcome>& outcome() const { return outcome_; }
  /// A handler's thread did not return: the process must end without destroying this object.
  bool has_lost_threads() const;
  Heartbeat heartbeat() const;
  StallReport stall_report() const;

 private:
  Status connect(const ConnectPeers& peers);
  void start();
  void take_prepared();
  void leave_start(Time now);
  void go();
  void count(uint64_t round);
  void hold(const HoldEngines& hold);
  Status take_order(TenantSlot slot, const Payload& message);
  void give_orders();
  bool give(const Payload& order);
  void tenant_changed(const TenantChange& change, const Status& status);
  void tenant_drained(TenantSlot slot);
  Status change_peer(const Payload& message);
  PeerSpec spec_of(const PeerEntry& entry) const;

  const std::shared_ptr<const Plan> plan_;
  const ProcessId process_;
  const Say say_;
  PeerConnections* const connections_;
  CafExecutorSetup setup_;
  std::unique_ptr<CafExecutor> executor_;
  std::future<Status> preparing_;
  std::future<RunOutcome> running_;
  std::optional<RunOutcome> outcome_;
  bool is_prepared_ = false;
  std::vector<PeerEntry> peers_;  // from ConnectPeers
  bool drains_ = false;           // a drain was requested before it could begin
  std::set<TenantSlot> set_aside_;
  std::vector<ActorCommand> commands_;   // commands that arrived before they could be handled
  std::deque<Payload> orders_;           // ChangeTenant and DrainTenant that were not given yet
  std::atomic<size_t> num_changing_{0};  // changes that the executor has not reported
  std::mutex drains_mutex_;
  std::map<TenantSlot, DrainTenant>
      slot_drains_;  // guarded by drains_mutex_: the newest of each slot
  bool stops_ = false;
  std::optional<Time> leaves_at_;  // set when the run must end while the actor groups are made
  bool has_left_start_ = false;
};

/// The connections' events, which report to the control plane through `say`.
ConnectionEvents connection_events(RunMember::Say say, std::function<void(const Error&)> failed,
                                   std::function<void(const std::string&)> changed);

ConnectionReport report_of(const ConnectionStatus& status);

}  // namespace primerl
