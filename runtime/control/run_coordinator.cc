#include "runtime/control/run_coordinator.h"

#include <algorithm>
#include <utility>

#include "graph/weight_backend.h"

namespace primerl {
namespace {

// Time between two counts of a run that is not idle yet.
constexpr Duration kLookAgain = Duration::milliseconds(5);

Error out_of_turn(const Plan& plan, ProcessId from, std::string_view what) {
  return error(Code::kCorrupt, "process '{}' said '{}' out of turn", plan.process(from).name, what);
}

}  // namespace

RunCoordinator::RunCoordinator(const Plan& plan, uint64_t types_hash, uint32_t incarnation,
                               Send send)
    : plan_(plan),
      types_hash_(types_hash),
      send_(std::move(send)),
      members_(plan.processes.size()),
      neighbours_(members_.size(), std::vector<bool>(members_.size(), false)) {
  for (Member& member : members_) member.incarnation = incarnation;
  for (const auto& edge : plan.edges)
    for (const InstanceId sender : plan.node(edge.from).instances)
      for (const InstanceId target : plan.node(edge.to).instances) {
        if (!plan.are_joined(sender, target)) continue;
        const size_t a = plan.process_of(sender).index(), b = plan.process_of(target).index();
        neighbours_[a][b] = neighbours_[b][a] = a != b;
      }
  for (uint32_t a = 0; a < members_.size(); ++a)
    for (uint32_t b = a + 1; b < members_.size(); ++b)
      if (are_joined_by_weights(plan, ProcessId(a), ProcessId(b)))
        neighbours_[a][b] = neighbours_[b][a] = true;
}

template <class Done>
bool RunCoordinator::all(const Done& done) const {
  return std::all_of(members_.begin(), members_.end(), done);
}

template <Message T>
void RunCoordinator::tell_all(const T& message) {
  for (uint32_t i = 0; i < members_.size(); ++i)
    if (!members_[i].has_ended) send_(ProcessId(i), Payload::of(T(message)));
}

Status RunCoordinator::handle(ProcessId from, const Payload& message, Time now) {
  CHECK(from.index() < members_.size(), "a message of a process that the plan does not have");
  Member& member = members_[from.index()];
  if (const auto* hello = as_if<WorkerHello>(message)) return greet(from, *hello);
  if (is_up() &&
      (as_if<PeersConnected>(message) != nullptr || as_if<GroupsReady>(message) != nullptr))
    return bring_back(from, message, now);
  if (as_if<PeersConnected>(message) != nullptr) {
    if (phase_ != Phase::kConnecting) return out_of_turn(plan_, from, PeersConnected::kName);
    member.has_connections = true;
    if (!all([](const Member& one) { return one.has_connections; })) return ok();
    phase_ = Phase::kStarting;
    for (uint32_t i = 0; i < members_.size(); ++i)
      start(ProcessId(i), members_[i].is_absent ? run_time_ns(now) : 0);
  } else if (as_if<GroupsReady>(message) != nullptr) {
    if (phase_ != Phase::kStarting) return out_of_turn(plan_, from, GroupsReady::kName);
    member.is_ready = true;
    if (!all([](const Member& one) { return one.is_ready; })) return ok();
    phase_ = Phase::kRunning;
    for (uint32_t i = 0; i < members_.size(); ++i)
      if (!members_[i].is_absent) go(ProcessId(i));
  } else if (as_if<GroupsCaughtUp>(message) != nullptr) {
    if (!is_up() || member.has_followed) return out_of_turn(plan_, from, GroupsCaughtUp::kName);
    member.has_followed = true;
    if (!all([](const Member& one) { return one.has_followed; })) return ok();
    resumed_ = now;
    for (uint32_t i = 0; i < members_.size(); ++i)
      if (std::exchange(members_[i].is_absent, false)) go(ProcessId(i));
    tell_all(ResumeLive{static_cast<uint32_t>(members_.size())});
  } else if (const auto* tenant = as_if<TenantFinished>(message)) {
    const size_t num_slots = is_served_ ? plan_.num_slots() : plan_.tenants.size();
    if (tenant->tenant.is_none() || tenant->tenant.index() >= num_slots)
      return error(Code::kCorrupt, "process '{}' said that tenant slot {} has finished, of {}",
                   plan_.process(from).name, tenant->tenant.value, num_slots);
    if (is_served_) {
      // Its actors may wait for what was lost with the failure: in each process they count as idle.
      // tenant_control.h drains the slot, and a later tenant of it is another.
      if (!tenant->fault.empty()) tell_all(SetTenantAside{tenant->tenant});
      return ok();
    }
    if (!tenant->fault.empty() && set_aside_.emplace(tenant->tenant, tenant->fault).second)
      tell_all(SetTenantAside{tenant->tenant});
    finished_.insert(tenant->tenant);
    if (finished_.size() >= plan_.tenants.size()) drain("finished", 0);
  } else if (const auto* counted = as_if<GroupsCounted>(message)) {
    count(from, *counted, now);
  } else if (const auto* beat = as_if<Heartbeat>(message)) {
    member.beat = *beat;
  } else if (const auto* ended = as_if<RunEnded>(message)) {
    member.has_ended = true;
    member.beat.edges = ended->edges;
  }
  return ok();
}

void RunCoordinator::set_absent(ProcessId process, uint32_t incarnation) {
  Member& member = members_[process.index()];
  member.incarnation = incarnation;
  member.is_absent = member.has_followed = true;
}

void RunCoordinator::start(ProcessId process, int64_t at_ns) {
  send_(process, Payload::of(StartRun{members_[process.index()].incarnation, at_ns, is_served_}));
}

void RunCoordinator::go(ProcessId process) {
  send_(process, Payload::of(GoRun{static_cast<uint32_t>(members_.size())}));
}

Status RunCoordinator::greet(ProcessId from, const WorkerHello& hello) {
  Member& member = members_[from.index()];
  const std::string& name = plan_.process(from).name;
  const bool is_awaited = phase_ == Phase::kGreeting || is_up();
  if (!is_awaited || member.hello) return out_of_turn(plan_, from, hello.kName);
  const ExpectedHello expected{plan_.graph_hash, types_hash_, name, member.incarnation};
  if (const Status fits = check_hello(hello, expected); !fits.ok())
    return Error(fits.error()).while_doing(fmt::format("process '{}'", name));
  member.hello = hello;
  if (is_up()) {
    notify_peers(from, Payload::of(PeerUp{entry_of(from.index())}));
    send_(from, Payload::of(peers_of(from.index())));
    return ok();
  }
  if (!all([](const Member& one) { return one.hello.has_value(); })) return ok();
  if (members_.size() > 1) {
    connect();
  } else {
    phase_ = Phase::kRunning;
    start(from, 0);
  }
  return ok();
}

void RunCoordinator::connect() {
  phase_ = Phase::kConnecting;
  for (uint32_t i = 0; i < members_.size(); ++i) send_(ProcessId(i), Payload::of(peers_of(i)));
}

PeerEntry RunCoordinator::entry_of(size_t process) const {
  const WorkerHello& hello = *members_[process].hello;
  return {static_cast<uint32_t>(process),
          hello.process,
          hello.incarnation,
          hello.addresses,
          hello.public_key,
          hello.pass};
}

/// Only live peers. A peer that is itself being restarted is told of this process later.
ConnectPeers RunCoordinator::peers_of(size_t process) const {
  ConnectPeers peers;
  for (size_t k = 0; k < members_.size(); ++k)
    if (neighbours_[process][k] && members_[k].hello) peers.peers.push_back(entry_of(k));
  return peers;
}

void RunCoordinator::notify_peers(ProcessId process, const Payload& message) {
  for (uint32_t k = 0; k < members_.size(); ++k)
    if (neighbours_[process.index()][k] && members_[k].hello) send_(ProcessId(k), message);
}

uint32_t RunCoordinator::process_died(ProcessId process) {
  CHECK(is_up(), "a process was given up before the run was up");
  Member& member = members_[process.index()];
  const uint32_t incarnation = member.incarnation;
  member = Member();
  member.incarnation = incarnation + 1;
  idle_since_.reset();
  quiet_steps_.reset();  // counts that the dead process did not answer are requested again
  notify_peers(process, Payload::of(PeerDown{process.value, incarnation}));
  return member.incarnation;
}

/// 0: the time of the run is each machine's steady clock.
int64_t RunCoordinator::run_time_ns(Time now) const {
  if (!ended_) return 0;
  return (resumed_ ? *ended_ + (now - *resumed_) : *ended_).to_nanoseconds();
}

Status RunCoordinator::bring_back(ProcessId from, const Payload& message, Time now) {
  Member& member = members_[from.index()];
  const bool has_connections = as_if<PeersConnected>(message) != nullptr;
  if (!member.hello || member.is_ready || has_connections == member.has_connections)
    return out_of_turn(plan_, from, message.type->name);
  if (has_connections) {
    member.has_connections = true;
    start(from, run_time_ns(now));
    // It missed the order to drain. When it gets the order now, it abandons loading that does not
    // end.
    if (phase_ == Phase::kDraining) send_(from, Payload::of(DrainRun{"the run drains"}));
    return ok();
  }
  member.is_ready = true;
  go(from);
  for (const auto& [tenant, why] : set_aside_) send_(from, Payload::of(SetTenantAside{tenant}));
  // It missed the count whose answer is still missing.
  if (phase_ == Phase::kDraining) begin_round();
  return ok();
}

bool RunCoordinator::drain(const std::string& reason, uint8_t end) {
  if (phase_ != Phase::kRunning) return phase_ > Phase::kRunning;
  phase_ = Phase::kDraining;
  end_ = end;
  tell_all(DrainRun{reason});
  if (members_.size() > 1) begin_round();
  return true;
}

void RunCoordinator::begin_round() {
  next_round_.reset();
  for (Member& member : members_) member.counted.reset();
  tell_all(CountGroups{++round_});
}

void RunCoordinator::count(ProcessId from, const GroupsCounted& counted, Time now) {
  if (phase_ != Phase::kDraining || counted.round != round_) return;
  // A process that is being restarted has nothing in flight yet, so its count is ignored.
  if (!members_[from.index()].is_ready) return;
  members_[from.index()].counted = counted;
  if (!all([](const Member& one) { return one.counted.has_value(); })) return;
  uint64_t steps = 0, in_flight = 0;
  bool is_idle = true;
  for (const Member& member : members_) {
    steps += member.counted->num_steps;
    in_flight += member.counted->in_flight;
    is_idle = is_idle && member.counted->is_idle;
  }
  if (!is_idle || std::exchange(counted_steps_, steps) != steps) idle_since_.reset();
  if (is_idle && !idle_since_) idle_since_ = now;
  const bool is_quiet = is_idle && in_flight == 0;
  if (is_quiet && quiet_steps_ == steps) {
    phase_ = Phase::kEnding;
    return tell_all(EndRun{end_});
  }
  quiet_steps_ = is_quiet ? std::optional(steps) : std::nullopt;
  if (is_quiet) return begin_round();
  next_round_ = now + kLookAgain;
}

Status RunCoordinator::tick(Time now) {
  if (next_round_ && now >= *next_round_) begin_round();
  if (members_.size() < 2 || (phase_ != Phase::kRunning && phase_ != Phase::kDraining)) return ok();
  if (phase_ == Phase::kDraining && idle_since_ && now - *idle_since_ >= plan_.settings.drain_max)
    return with_stalls(error(Code::kDeadline, "the run has not drained within {}",
                             to_string(plan_.settings.drain_max)));
  const auto still_max = plan_.settings.stall_after;
  bool is_waiting = false, has_alarm = false;
  for (const Member& member : members_) {
    if (Duration::milliseconds(member.beat.still_ms) < still_max) return ok();
    is_waiting = is_waiting || member.beat.is_waiting;
    has_alarm = has_alarm || member.beat.has_alarm;
  }
  // All processes wait only for timers, or for tenants that join: that is not a stall.
  if ((has_alarm || is_served_) && !is_waiting) return ok();
  return with_stalls(error(Code::kDeadline, "no step and no sign of life for {} in any process",
                           to_string(still_max)));
}

Error RunCoordinator::with_stalls(Error stalled) const {
  for (size_t i = 0; i < members_.size(); ++i)
    if (!members_[i].beat.stall.empty())
      (void)std::move(stalled).note(
          fmt::format("process '{}':\n{}", plan_.processes[i].name, members_[i].beat.stall));
  // A drain waits until no message is in flight, even if every group is idle.
  if (phase_ == Phase::kDraining) {
    const std::vector<EdgeLedger> total = total_edges();
    for (size_t e = 0; e < total.size(); ++e)
      if (const auto under_way = static_cast<int64_t>(total[e].in_flight); under_way != 0)
        (void)std::move(stalled).note(
            fmt::format("edge '{}': {} messages in flight", plan_.edges[e].name, under_way));
  }
  return tell_stall_ ? std::move(stalled).note(tell_stall_()) : std::move(stalled);
}

std::string RunCoordinator::waits_for() const {
  std::vector<std::string> late;
  for (size_t i = 0; i < members_.size(); ++i) {
    const Member& member = members_[i];
    const bool is_done = phase_ == Phase::kGreeting     ? member.hello.has_value()
                         : phase_ == Phase::kConnecting ? member.has_connections
                                                        : member.is_ready;
    if (!is_done) late.push_back("'" + plan_.processes[i].name + "'");
  }
  return fmt::format("{}", fmt::join(late, ", "));
}

const std::vector<EdgeLedger>& RunCoordinator::edges_of(ProcessId process) const {
  return members_[process.index()].beat.edges;
}

const Heartbeat& RunCoordinator::heartbeat_of(ProcessId process) const {
  return members_[process.index()].beat;
}

std::vector<EdgeLedger> RunCoordinator::total_edges() const {
  std::vector<EdgeLedger> total(plan_.edges.size());
  for (const Member& member : members_)
    for (size_t e = 0; e < std::min(total.size(), member.beat.edges.size()); ++e) {
      const EdgeLedger& part = member.beat.edges[e];
      total[e].sent += part.sent;
      total[e].handled += part.handled;
      total[e].in_flight += part.in_flight;
      total[e].returned += part.returned;
      total[e].dropped += part.dropped;
      total[e].failed += part.failed;
      total[e].waiting_max = std::max(total[e].waiting_max, part.waiting_max);
    }
  return total;
}

Status check_ledger(const Plan& plan, const std::vector<EdgeLedger>& total) {
  for (size_t e = 0; e < total.size(); ++e) {
    const EdgeLedger& edge = total[e];
    if (edge.in_flight == 0 && edge.sent == edge.handled + edge.returned + edge.dropped) continue;
    return error(
        Code::kInternal,
        "edge '{}' does not balance: {} sent, {} handled, {} returned, {} dropped, {} in flight",
        plan.edges[e].name, edge.sent, edge.handled, edge.returned, edge.dropped,
        static_cast<int64_t>(edge.in_flight));
  }
  return ok();
}

}  // namespace primerl
