/// RunCoordinator: brings the processes of one run up together and finds the end of it.
///
///   all:  WorkerHello -> [ConnectPeers -> PeersConnected] -> StartRun -> GroupsReady -> GoRun
///   recovered: GroupsCaughtUp -> ResumeLive
///   end:  TenantFinished of every tenant | drain() -> DrainRun -> CountGroups/GroupsCounted ->
///   EndRun
///
/// What stands in one step waits for all processes: no source starts before every link is live and
/// every group is made, and no group of a recovered run resumes before all have followed. A drain
/// is over when two successive looks find every group idle, nothing under way between any two, and
/// no step taken in between; the sums are of all processes, so a message that crosses a look is
/// seen in the next one. A run whose process is alone has no links to make and finds its end by
/// itself: StartRun is all it gets.
///
/// A state machine: no thread, no clock, no socket. The owner tells it what arrived and when, and
/// sends what it says. Not thread-safe.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "runtime/control/launch.h"

namespace primerl {

class RunCoordinator {
 public:
  using Send = std::function<void(ProcessId to, Payload message)>;
  enum class Phase { kGreeting, kConnecting, kStarting, kRunning, kDraining, kEnding };

  /// `plan` outlives it.
  RunCoordinator(const Plan& plan, uint64_t types_hash, uint32_t incarnation, Send send);

  /// One message of one worker; those it does not know are nobody's. An Error ends the run: a
  /// worker that disagrees, with both values, or one that speaks out of turn.
  Status handle(ProcessId from, const Payload& message, Time now);
  /// Who stands where, over all processes, from their newest heartbeats: the table that a stall is
  /// reported with.
  void tell_stalls_by(std::function<std::string()> tell) { tell_stall_ = std::move(tell); }
  /// Now and then: asks again while a drain goes on. An Error: nobody gets on any more.
  Status tick(Time now);
  /// A worker of a run that is up has died. Its neighbours are told; the incarnation of the
  /// incarnation to start in its place, which then comes up as the first did.
  uint32_t process_died(ProcessId process);
  /// Ends the run gently. Before it runs there is nothing to drain: false.
  bool drain(const std::string& reason, uint8_t end);

  Phase phase() const { return phase_; }
  /// Before the first hello: the process follows no record while the others do; it begins as
  /// `incarnation` when they resume.
  void set_absent(ProcessId process, uint32_t incarnation);
  bool is_up() const { return phase_ >= Phase::kRunning; }
  /// Processes that the run still waits for, by name: "inference#1 and training".
  std::string waits_for() const;

  /// Of the newest heartbeats or, where it has ended, of its last word.
  const std::vector<EdgeLedger>& edges_of(ProcessId process) const;
  const Heartbeat& heartbeat_of(ProcessId process) const;
  /// Summed over all processes; waiting_max is the greatest.
  std::vector<EdgeLedger> total_edges() const;

 private:
  struct Member {
    uint32_t incarnation = 0;
    std::optional<WorkerHello> hello;
    bool has_links = false;
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
  Status bring_back(ProcessId from, const Payload& message);
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
  uint8_t end_ = 0;  // RunEnd of a drain that succeeds

  // Of a drain.
  uint64_t round_ = 0;
  std::optional<uint64_t> quiet_steps_;  // of the last look, if all was quiet
  std::optional<Time> next_round_;
};

/// Whether every message of a run that ended cleanly is accounted for, edge by edge.
Status check_ledger(const Plan& plan, const std::vector<EdgeLedger>& total);

}  // namespace primerl
