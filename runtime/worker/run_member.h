/// RunMember: one process of a run, from StartRun to its outcome: an executor that obeys the
/// messages of the control plane (control_messages.h, run_coordinator.h) and answers them.
///
/// A single process takes inputs as soon as its actor groups are made. One with peers waits for
/// ConnectPeers before and for GoRun after, and reports what can be decided only over all
/// processes.
///
/// Threads: everything from one thread; `say` is also called from the connections' I/O thread and
/// from actor groups' threads. Making actor groups may take minutes and has a thread of its own.
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

  /// `executor.others` is set here. `connections` are already open and outlive it;
  /// obey() connects them; null: the process is alone.
  RunMember(CafExecutorSetup executor, PeerConnections* connections, Say say);
  ~RunMember();

  /// One message of the control plane; unknown ones are ignored.
  Status obey(const Payload& message);
  /// Call it regularly: reports that the actor groups are ready, takes the outcome.
  void poll();
  /// Ends the run now; before StartRun there is none.
  void stop();

  bool has_begun() const { return executor_ != nullptr; }
  bool is_running() const { return running_.valid(); }
  /// Orders a cut (process_cut.h); any thread, while it is running.
  void cut(uint64_t number) {
    if (executor_ != nullptr) executor_->cut(number);
  }
  /// How it ended, once it has.
  const std::optional<RunOutcome>& outcome() const { return outcome_; }
  bool has_lost_threads() const;
  Heartbeat heartbeat() const;
  StallReport stall_report() const;

 private:
  Status connect(const ConnectPeers& peers);
  void start();
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
};

/// The events of connections, reported to the control plane through `say`.
ConnectionEvents connection_events(RunMember::Say say, std::function<void(const Error&)> failed,
                                   std::function<void(const std::string&)> changed);

ConnectionReport report_of(const ConnectionStatus& status);

}  // namespace primerl
