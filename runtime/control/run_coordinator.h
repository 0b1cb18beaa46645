/// RunCoordinator: starts the processes of one run together and detects the end of the run.
///
///   all:  WorkerHello -> [ConnectPeers -> PeersConnected] -> StartRun -> GroupsReady -> GoRun
///   recovered: GroupsCaughtUp -> ResumeLive
///   a tenant fails: TenantFinished with why -> SetTenantAside to all
///   end:  TenantFinished of every tenant | drain() -> DrainRun ->
///         CountGroups/GroupsCounted -> EndRun
///
/// Each step waits for all processes: no source starts before every connection is live and every
/// actor group is made, and no actor group of a recovered run resumes before all have followed
/// their records. A drain is over when two successive counts find every actor group idle, no
/// message in flight between any two, and no step taken in between; the counts are summed over all
/// processes, so a message that is sent during one count shows in the next. A run of one process
/// has no connections to make and detects its end itself: it gets only StartRun.
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

  /// `plan` outlives it.
  RunCoordinator(const Plan& plan, uint64_t types_hash, uint32_t incarnation, Send send);

  /// One message of one worker; unknown ones are ignored. An Error ends the run: the hello of a
  /// worker differs (the error has both values), or a message came out of turn.
  Status handle(ProcessId from, const Payload& message, Time now);
  /// What each node is blocked on, over all processes, from their newest heartbeats: the table of a
  /// stall report.
  void tell_stalls_by(std::function<std::string()> tell) { tell_stall_ = std::move(tell); }
  /// Call it regularly: it counts again while a drain goes on. An Error: no progress.
  Status tick(Time now);
  /// A worker of a run that is up has died. Its neighbours are told. Returns the incarnation to
  /// start in its place, which then starts up as the first one did.
  uint32_t process_died(ProcessId process);
  /// Drains the run. False before the run is up: there is nothing to drain.
  bool drain(const std::string& reason, uint8_t end);

  /// Tenants that failed, in a run of several processes.
  const SetAside& set_aside() const { return set_aside_; }

  Phase phase() const { return phase_; }
  /// Before the first hello: the process follows no record while the others do; it begins as
  /// `incarnation` when they resume.
  void set_absent(ProcessId process, uint32_t incarnation);
  /// Before the first hello: the others follow a record, and the time of the run goes on from its
  /// end when they resume. Processes that begin anew are told that time.
  void go_on_from(Time ended) { ended_ = ended; }
  bool is_up() const { return phase_ >= Phase::kRunning; }
  /// Processes that the run still waits for, by name: "inference#1 and training".
  std::string waits_for() const;

  /// Of its newest heartbeat or, if it has ended, of its RunEnded.
  const std::vector<EdgeLedger>& edges_of(ProcessId process) const;
  const Heartbeat& heartbeat_of(ProcessId process) const;
  /// Summed over all processes; waiting_max is the greatest.
  std::vector<EdgeLedger> total_edges() const;

 private:
  struct Member {
    uint32_t incarnation = 0;
    std::optional<WorkerHello> hello;
    bool has_connections = false;
    bool is_ready = false;
    bool has_followed = false;  // or has nothing to follow
    bool is_absent = false;     // waits until the others have followed
    bool has_ended = false;
    Heartbeat beat;
    std::optional<GroupsCounted> counted;  // of this round
  };

  Status greet(ProcessId from, const WorkerHello& hello);
  void go(ProcessId process);
  void connect();
  ConnectPeers peers_of(size_t process) const;
  PeerEntry entry_of(size_t process) const;
  void tell_neighbours(ProcessId process, const Payload& message);
  Status bring_back(ProcessId from, const Payload& message, Time now);
  int64_t run_time_ns(Time now) const;
  void count(ProcessId from, const GroupsCounted& counted, Time now);
  void begin_round();
  template <class Done>
  bool all(const Done& done) const;
  template <Message T>
  void tell_all(const T& message);

  const Plan& plan_;
  const uint64_t types_hash_;
  const Send send_;
  std::function<std::string()> tell_stall_;
  std::vector<Member> members_;
  std::vector<std::vector<bool>> neighbours_;  // processes that share an edge
  Phase phase_ = Phase::kGreeting;
  std::set<TenantSlot> finished_;
  SetAside set_aside_;
  uint8_t end_ = 0;  // RunEnd of a drain that succeeds
  // Of a run that goes on from its record.
  std::optional<Time> ended_, resumed_;  // time of the run; when that was, here

  // Of a drain.
  uint64_t round_ = 0;
  std::optional<uint64_t> quiet_steps_;  // of the last count, if all was idle
  std::optional<Time> next_round_;
};

/// Whether every message of a run that ended cleanly is accounted for, edge by edge.
Status check_ledger(const Plan& plan, const std::vector<EdgeLedger>& total);

}  // namespace primerl
