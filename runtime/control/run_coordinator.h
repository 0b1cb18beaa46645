/// RunCoordinator: starts the processes of one run together and detects the end of the run.
///
///   all:  WorkerHello -> [ConnectPeers -> PeersConnected] -> StartRun -> GroupsReady -> GoRun
///   recovered: GroupsCaughtUp -> ResumeLive
///   a tenant fails: TenantFinished with why -> SetTenantAside to all
///   end:  TenantFinished of every tenant | drain() -> DrainRun ->
///         CountGroups/GroupsCounted -> EndRun
///
/// In a run that is served, tenants come and go: TenantFinished ends the tenant (tenant_control.h)
/// and not the run.
///
/// Each step waits for all processes. No source starts before every connection is live and every
/// actor group is made. No actor group of a recovered run resumes before all have followed their
/// records. A drain is over when two successive counts find every actor group idle, no message in
/// flight, and no step between the two counts. The counts are summed over all processes, so a
/// message that is sent during one count shows in the next. If all groups are idle for drain_max
/// and messages are still in flight, the run fails; a group that stays busy is reported by its
/// process. A run of one process has no connections and detects its end itself: it gets only
/// StartRun.
///
/// A state machine: no thread, no clock, no socket. The owner passes it every message with its
/// time, and sends the messages that it emits. Not thread-safe.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "runtime/control/launch.h"
#include "runtime/exec/executor.h"

namespace primerl {

class RunCoordinator {
 public:
  using Send = std::function<void(ProcessId to, Payload message)>;
  enum class Phase { kGreeting, kConnecting, kStarting, kRunning, kDraining, kEnding };

  /// `plan` must stay valid while the coordinator exists.
  RunCoordinator(const Plan& plan, uint64_t types_hash, uint32_t incarnation, Send send);

  /// Call before the first hello: tenants come and go.
  void serve() { is_served_ = true; }
  /// Handles one message of one worker; unknown messages are ignored. An Error ends the run: the
  /// hello of a worker differs (the error has both values), or a message came at a wrong time.
  Status handle(ProcessId from, const Payload& message, Time now);
  /// Whether set_absent() was called for the process and it does not take part yet.
  bool is_absent(ProcessId process) const { return members_[process.index()].is_absent; }
  /// Sets the function that makes the table of a stall report: what each node is blocked on, in all
  /// processes, from their newest heartbeats.
  void tell_stalls_by(std::function<std::string()> tell) { tell_stall_ = std::move(tell); }
  /// Call it regularly: it counts again during a drain. An Error: no progress.
  Status tick(Time now);
  /// A worker of a started run died. Connected processes are notified. Returns the incarnation of
  /// its replacement, which then starts like the first one.
  uint32_t process_died(ProcessId process);
  /// Drains the run. False if the run has not started: there is nothing to drain.
  bool drain(const std::string& reason, uint8_t end);

  /// The failed tenants, in a run of several processes.
  const SetAside& set_aside() const { return set_aside_; }

  Phase phase() const { return phase_; }
  /// Call before the first hello: the process follows no record while the others do. It begins as
  /// `incarnation` when they resume.
  void set_absent(ProcessId process, uint32_t incarnation);
  /// Call before the first hello: the other processes follow a record. When they resume, the time
  /// of the run continues from `ended`. Processes without a record get that time.
  void continue_from(Time ended) { ended_ = ended; }
  bool is_up() const { return phase_ >= Phase::kRunning; }
  /// Names of the processes that the run still waits for: "inference#1 and training".
  std::string waits_for() const;

  /// From the newest heartbeat or, if the process has ended, from its RunEnded.
  const std::vector<EdgeLedger>& edges_of(ProcessId process) const;
  const Heartbeat& heartbeat_of(ProcessId process) const;
  /// Sums over all processes; waiting_max is the maximum.
  std::vector<EdgeLedger> total_edges() const;

 private:
  struct Member {
    uint32_t incarnation = 0;
    std::optional<WorkerHello> hello;
    bool has_connections = false;
    bool is_ready = false;
    bool has_followed = false;  // also true without a record to follow
    bool is_absent = false;     // waits until the others have followed their records
    bool has_ended = false;
    Heartbeat beat;
    std::optional<GroupsCounted> counted;  // for this round
  };

  Status greet(ProcessId from, const WorkerHello& hello);
  void start(ProcessId process, int64_t at_ns);
  void go(ProcessId process);
  void connect();
  ConnectPeers peers_of(size_t process) const;
  PeerEntry entry_of(size_t process) const;
  void notify_peers(ProcessId process, const Payload& message);
  Status bring_back(ProcessId from, const Payload& message, Time now);
  int64_t run_time_ns(Time now) const;
  void count(ProcessId from, const GroupsCounted& counted, Time now);
  void begin_round();
  /// The tables of a run that makes no progress.
  Error with_stalls(Error stalled) const;
  template <class Done>
  bool all(const Done& done) const;
  template <Message T>
  void tell_all(const T& message);

  const Plan& plan_;
  const uint64_t types_hash_;
  const Send send_;
  std::function<std::string()> tell_stall_;
  std::vector<Member> members_;
  std::vector<std::vector<bool>> neighbours_;  // pairs of processes that share an edge
  Phase phase_ = Phase::kGreeting;
  bool is_served_ = false;
  std::set<TenantSlot> finished_;
  SetAside set_aside_;
  uint8_t end_ = 0;  // RunEnd of a drain that succeeds
  // For a run that continues from its record.
  std::optional<Time> ended_, resumed_;  // the run's time at the record's end; this process's time
                                         // at resume

  // For a drain.
  uint64_t round_ = 0;
  std::optional<uint64_t> quiet_steps_;  // steps at the last count, if all groups were idle
  std::optional<Time> next_round_;
  uint64_t counted_steps_ = 0;      // at the last count
  std::optional<Time> idle_since_;  // since then every count found all groups idle, and no step
};

/// Checks that every message of a cleanly ended run is accounted for, edge by edge.
Status check_ledger(const Plan& plan, const std::vector<EdgeLedger>& total);

}  // namespace primerl
