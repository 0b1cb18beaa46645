/// RunMember: one process of a run, from StartRun to its outcome: an executor that obeys the
/// messages of the control plane (control_messages.h, run_coordinator.h) and answers them.
///
/// A single process takes inputs as soon as its actor groups are made. One with peers waits for
/// ConnectPeers before and for GoRun after, and reports what can be decided only over all
/// processes.
///
/// Making actor groups loads models, which may take minutes, or for ever where a driver or a file
/// system hangs. After the order to drain or to stop it may go on for kStartLeftMax; then its
/// thread is left behind: nothing was computed that could be lost.
///
/// Threads: everything from one thread; `say` is also called from the connections' I/O thread and
/// from actor groups' threads. Making actor groups has a thread of its own.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>

#include "runtime/exec/caf_executor.h"
#include "runtime/wire/control_messages.h"
#include "runtime/worker/peer_connections.h"

namespace primerl {

class RunMember {
 public:
  using Say = std::function<void(Payload message)>;

  /// With it a run that is told to end while it starts is gone before a batch system, which waits
  /// 30 s, kills it.
  static constexpr Duration kStartLeftMax = Duration::seconds(10);

  /// `executor.others` is set here. `connections` are already open and outlive it;
  /// obey() connects them; null: the process is alone.
  RunMember(CafExecutorSetup executor, PeerConnections* connections, Say say);
  ~RunMember();

  /// One message of the control plane; unknown ones are ignored.
  Status obey(const Payload& message);
  /// Call it regularly: reports that the actor groups are ready, takes the outcome.
  void poll(Time now);
  /// Ends the run now; before StartRun, it does not begin.
  void stop();

  bool has_begun() const { return executor_ != nullptr; }
  bool is_running() const { return running_.valid(); }
  /// Orders a cut (process_cut.h); any thread, while it is running.
  void cut(uint64_t number) {
    if (executor_ != nullptr) executor_->cut(number);
  }
  /// How it ended, once it has.
  const std::optional<RunOutcome>& outcome() const { return outcome_; }
  /// The process has to end without destroying this.
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
  std::vector<PeerEntry> peers_;  // of ConnectPeers
  bool drains_ = false;           // a drain was asked for before it could begin
  std::set<TenantSlot> set_aside_;
  std::vector<ActorCommand> commands_;  // that came before it could begin
  bool stops_ = false;
  std::optional<Time> leaves_at_;  // told to end while the actor groups are made
  bool has_left_start_ = false;
};

/// The events of connections, reported to the control plane through `say`.
ConnectionEvents connection_events(RunMember::Say say, std::function<void(const Error&)> failed,
                                   std::function<void(const std::string&)> changed);

ConnectionReport report_of(const ConnectionStatus& status);

}  // namespace primerl
