#include "runtime/worker/run_member.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "actors/messages/load.h"
#include "actors/messages/policy.h"

namespace primerl {
namespace {

// A restarted process gets at most this many orders for each slot at once: the plan's tenant
// leaves, another is made, started and paused, or drains and leaves; and all of them again.
constexpr size_t kOrdersPerSlotMax = 16;

// The number of commands of the process itself. The control plane counts its own from 1.
constexpr uint64_t kOwnCommand = 0;

bool is_pause_or_resume(TenantChange::Kind kind) {
  return kind == TenantChange::Kind::kPause || kind == TenantChange::Kind::kResume;
}

/// Whether the second order makes the first one needless, which still waits: it repeats the first,
/// is the next round of a drain, or ends a pause that was not made yet.
bool replaces(const Payload& first, const Payload& second) {
  const auto* drain = as_if<DrainTenant>(first);
  const auto* next = as_if<DrainTenant>(second);
  if (drain != nullptr && next != nullptr)
    return drain->slot == next->slot && drain->tenancy == next->tenancy;
  if (drain != nullptr || next != nullptr) return false;
  const TenantChange& one = as_if<ChangeTenant>(first)->change;
  const TenantChange& other = as_if<ChangeTenant>(second)->change;
  return one.slot == other.slot && one.tenancy == other.tenancy &&
         (one.kind == other.kind ||
          (is_pause_or_resume(one.kind) && is_pause_or_resume(other.kind)));
}

template <class T>
bool is_ready(const std::future<T>& future) {
  return future.valid() && future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace

RunMember::RunMember(CafExecutorSetup executor, PeerConnections* connections, Say say)
    : plan_(executor.plan),
      process_(executor.process),
      say_(std::move(say)),
      connections_(connections),
      setup_(std::move(executor)) {
  setup_.others = connections;
  setup_.on_command = [this](const CommandAnswer& answer) {
    if (answer.number == kOwnCommand) return;  // a checkpoint, which is begun or asked for again
    HoldAnswered said{answer.number, answer.instance.value, 0, ""};
    if (!answer.status.ok()) {
      said.code = static_cast<uint8_t>(answer.status.error().code());
      said.text = answer.status.error().text();
    }
    say_(Payload::of(std::move(said)));
  };
  setup_.events.tenant_changed = [this, heard = std::move(setup_.events.tenant_changed)](
                                     const TenantChange& change, const Status& status) {
    if (heard) heard(change, status);
    tenant_changed(change, status);
  };
  setup_.events.tenant_drained = [this](TenantSlot slot) { tenant_drained(slot); };
  setup_.events.tenant_finished = [this](TenantSlot slot, uint32_t tenancy) {
    say_(Payload::of(TenantFinished{slot, "", tenancy}));
  };
  if (connections_ == nullptr)
    setup_.on_set_aside = [this](TenantSlot tenant, uint32_t tenancy, const std::string& why) {
      say_(Payload::of(TenantFinished{tenant, why, tenancy}));
    };
  if (connections_ == nullptr || setup_.step_source == nullptr) return;
  const auto num_groups = static_cast<uint32_t>(plan_->process(process_).groups.size());
  setup_.on_followed = [this, num_groups] { say_(Payload::of(GroupsCaughtUp{num_groups})); };
}

RunMember::~RunMember() {
  stop();
  if (preparing_.valid()) {
    preparing_.wait();
    take_prepared();
  }
  // No batch may arrive after the executor is destroyed.
  if (connections_ != nullptr) connections_->close();
  if (running_.valid()) running_.wait();
}

Status RunMember::obey(const Payload& message) {
  if (const auto* peers = as_if<ConnectPeers>(message)) return connect(*peers);
  if (const auto* begin = as_if<StartRun>(message)) {
    if (begin->at_ns != 0) setup_.begins_at = Time::from_nanoseconds(begin->at_ns);
    setup_.is_hosted = begin->is_served;
    start();
  }
  if (as_if<StopRun>(message) != nullptr) stop();
  if (!has_begun()) return ok();
  if (connections_ != nullptr) RETURN_IF_ERROR(change_peer(message));
  if (as_if<GoRun>(message) != nullptr) go();
  if (as_if<ResumeLive>(message) != nullptr) executor_->resume();
  if (as_if<DrainRun>(message) != nullptr) {
    drains_ = true;
    if (running_.valid()) executor_->request_drain();
  }
  if (const auto* aside = as_if<SetTenantAside>(message)) {
    if (aside->tenant.is_none() || aside->tenant.index() >= plan_->num_slots())
      return error(Code::kCorrupt, "a message sets tenant slot {} aside; the plan has {}",
                   aside->tenant.value, plan_->num_slots());
    set_aside_.insert(aside->tenant);
    if (running_.valid()) executor_->set_aside(aside->tenant);
  }
  if (const auto* hold = as_if<HoldEngines>(message)) this->hold(*hold);
  if (const auto* change = as_if<ChangeTenant>(message))
    RETURN_IF_ERROR(take_order(change->change.slot, message));
  if (const auto* drain = as_if<DrainTenant>(message))
    RETURN_IF_ERROR(take_order(drain->slot, message));
  if (const auto* look = as_if<CountGroups>(message); look != nullptr && is_prepared_)
    count(look->round);
  if (const auto* end = as_if<EndRun>(message)) {
    if (!running_.valid()) {
      stop();
      return ok();
    }
    if (connections_ != nullptr) connections_->leave();
    executor_->finish(static_cast<RunEnd>(end->end));
  }
  return ok();
}

/// Before the run starts, orders wait; after its end they are not answered.
void RunMember::hold(const HoldEngines& hold) {
  ActorCommand command{hold.number, hold.tenant, Payload::of(EngineHold{hold.owner, hold.lease})};
  if (running_.valid())
    executor_->command(command);
  else if (!outcome_ && commands_.size() < kCommandsMax)
    commands_.push_back(std::move(command));
}

Status RunMember::take_order(TenantSlot slot, const Payload& message) {
  if (slot.is_none() || slot.index() >= plan_->num_slots())
    return error(Code::kCorrupt, "an order is about tenant slot {}; the plan has {}", slot.value,
                 plan_->num_slots());
  // The control plane repeats orders while a slow join delays their answers.
  if (const auto waits = std::ranges::find_if(
          orders_, [&](const Payload& each) { return replaces(each, message); });
      waits != orders_.end()) {
    *waits = message;
    return ok();
  }
  if (orders_.size() >= kOrdersPerSlotMax * plan_->num_slots())
    return error(Code::kExhausted, "{} orders about tenants wait already", orders_.size());
  orders_.push_back(message);
  give_orders();
  return ok();
}

/// In the order in which they came: a drain follows the change before it.
void RunMember::give_orders() {
  if (!is_prepared_ || outcome_) return;
  while (!orders_.empty() && give(orders_.front())) orders_.pop_front();
}

/// False: it must wait until the executor has made some of the changes before it.
bool RunMember::give(const Payload& order) {
  if (const auto* drain = as_if<DrainTenant>(order)) {
    {
      const std::lock_guard lock(drains_mutex_);
      slot_drains_[drain->slot] = *drain;
    }
    executor_->drain_tenant(drain->slot);
    return true;
  }
  if (num_changing_ >= kTenantChangesMax) return false;
  const TenantChange& change = as_if<ChangeTenant>(order)->change;
  ++num_changing_;
  const Status taken = executor_->change_tenant(change);
  if (!taken.ok()) tenant_changed(change, taken);
  return true;
}

/// Any thread.
void RunMember::tenant_changed(const TenantChange& change, const Status& status) {
  --num_changing_;
  TenantAnswered answered{change.slot, change.tenancy, static_cast<uint8_t>(change.kind)};
  if (!status.ok()) {
    answered.code = static_cast<uint8_t>(status.error().code());
    answered.text = status.error().text();
  }
  say_(Payload::of(std::move(answered)));
}

/// Any thread.
void RunMember::tenant_drained(TenantSlot slot) {
  std::optional<DrainTenant> order;
  {
    const std::lock_guard lock(drains_mutex_);
    if (const auto found = slot_drains_.find(slot); found != slot_drains_.end())
      order = found->second;
    slot_drains_.erase(slot);
  }
  if (!order) return;
  TenantAnswered answered{order->slot, order->tenancy};
  answered.round = order->round;
  answered.num_steps = executor_->num_steps_of(slot);
  say_(Payload::of(std::move(answered)));
}

void RunMember::request_checkpoint(TenantSlot tenant, int64_t step) {
  if (running_.valid())
    executor_->command({kOwnCommand, tenant, Payload::of(CheckpointRequest{step})});
}

Status RunMember::connect(const ConnectPeers& known) {
  if (connections_ == nullptr)
    return error(Code::kInvalid, "a process that is alone in its run was told of {} others",
                 known.peers.size());
  std::vector<PeerSpec> peers;
  for (const PeerEntry& entry : known.peers) peers.push_back(spec_of(entry));
  peers_ = known.peers;
  return connections_->connect(peers);
}

PeerSpec RunMember::spec_of(const PeerEntry& entry) const {
  PeerSpec peer;
  peer.process = ProcessId(entry.process);
  peer.name = entry.name;
  peer.incarnation = entry.incarnation;
  const auto transport = transport_between(*plan_, process_, peer.process);
  peer.shares_memory = transport == EdgeTransport::kIpc;
  // ipc does not use the key pair that a run generates for its tcp connections.
  if (transport != EdgeTransport::kIpc || connections_->has_key_list())
    peer.public_key = entry.public_key;
  peer.pass = entry.pass;
  // The later process of the plan connects to the earlier one, by the transport of their edges.
  if (entry.process >= process_.value || entry.addresses.empty()) return peer;
  const std::string scheme = fmt::format("{}://", to_string(transport));
  const auto fits = [&](const AddressEntry& each) { return each.frames.starts_with(scheme); };
  const auto found = std::find_if(entry.addresses.begin(), entry.addresses.end(), fits);
  // Otherwise the first address is used, because the tests' transports have no scheme.
  const AddressEntry& address = found == entry.addresses.end() ? entry.addresses[0] : *found;
  peer.address = {address.frames, address.bulk};
  return peer;
}

Status RunMember::change_peer(const Payload& message) {
  if (const auto* down = as_if<PeerDown>(message)) {
    executor_->peer_down(ProcessId(down->process), down->incarnation);
    connections_->end_peer(ProcessId(down->process), down->incarnation);
  } else if (const auto* up = as_if<PeerUp>(message)) {
    const PeerSpec peer = spec_of(up->peer);
    return executor_->peer_up(peer.process, peer.incarnation,
                              [this, &peer] { return connections_->join(peer); });
  }
  return ok();
}

void RunMember::start() {
  if (has_begun() || stops_) return;
  for (const PeerEntry& peer : peers_)
    setup_.peer_incarnations.emplace_back(peer.process, peer.incarnation);
  executor_ = std::make_unique<CafExecutor>(setup_);
  preparing_ = std::async(std::launch::async, [this] { return executor_->prepare(); });
}

void RunMember::go() {
  if (!is_prepared_ || running_.valid() || outcome_) return;
  give_orders();  // the actors of tenants are made before anything is accepted
  executor_->go();
  running_ = std::async(std::launch::async, [this] { return executor_->wait(); });
  for (const TenantSlot tenant : set_aside_) executor_->set_aside(tenant);
  for (const ActorCommand& command : std::exchange(commands_, {})) executor_->command(command);
  if (drains_) executor_->request_drain();
}

void RunMember::poll(Time now) {
  if (outcome_) return;
  if (stops_ && !has_begun())
    outcome_ = RunOutcome{
        RunEnd::kInterrupted, error(Code::kCancelled, "stopped before it began"), {}, {}};
  if (is_ready(preparing_)) take_prepared();
  if (preparing_.valid() && (stops_ || drains_)) leave_start(now);
  if (is_ready(running_)) outcome_ = running_.get();
  give_orders();
}

void RunMember::take_prepared() {
  if (Status made = preparing_.get(); !made.ok()) {
    outcome_ = RunOutcome{RunEnd::kFailed, std::move(made), {}, {}};
    return;
  }
  is_prepared_ = true;
  if (stops_) return stop();
  if (connections_ == nullptr) return go();
  connections_->receive([this](ProcessId from, MessageBatch&& batch) {
    return executor_->arrive(from, std::move(batch));
  });
  const auto num_groups = plan_->process(process_).groups.size();
  say_(Payload::of(GroupsReady{static_cast<uint32_t>(num_groups)}));
}

/// The order to end arrived while the actor groups are being made.
void RunMember::leave_start(Time now) {
  if (!leaves_at_) leaves_at_ = now + kStartLeftMax;
  if (now < *leaves_at_) return;
  has_left_start_ = true;
  // The drain of the other processes needs this restarted process: it cannot complete without it.
  const bool is_awaited = !stops_ && setup_.begins_at.has_value();
  outcome_ = RunOutcome{
      is_awaited ? RunEnd::kFailed : RunEnd::kInterrupted,
      error(Code::kDeadline, "it was still loading {} after it was told to end, and was left",
            to_string(kStartLeftMax)),
      {},
      {}};
}

void RunMember::stop() {
  if (connections_ != nullptr) connections_->leave();
  stops_ = true;
  if (!is_prepared_) return;  // poll() does the rest
  executor_->request_stop();
  go();  // a process that waits for GoRun could not end otherwise
}

bool RunMember::has_lost_threads() const {
  return has_left_start_ || (executor_ != nullptr && executor_->has_lost_threads());
}

void RunMember::count(uint64_t round) {
  const RunStatus status = executor_->status();
  GroupsCounted counted;
  counted.round = round;
  counted.num_steps = status.num_steps;
  counted.is_idle = status.is_idle;
  for (const EdgeLedger& edge : status.edges) counted.in_flight += edge.in_flight;
  say_(Payload::of(counted));
}

Heartbeat RunMember::heartbeat() const {
  Heartbeat beat;
  if (!is_prepared_) return beat;  // it is alive; its actor groups are not made yet
  RunStatus status = executor_->status();
  beat.num_steps = status.num_steps;
  beat.is_draining = status.is_draining;
  beat.still_ms = static_cast<int64_t>(status.idle_for.to_seconds() * 1e3);
  beat.is_waiting = status.is_waiting;
  beat.has_alarm = status.has_alarm;
  // Only while a record is followed; otherwise the reports of the actor groups show their state.
  if (connections_ != nullptr && status.idle_for >= plan_->settings.stall_after &&
      !executor_->is_live())
    beat.stall = setup_.step_source->stuck().text();
  beat.edges = std::move(status.edges);
  ProcessLoad load = executor_->load();
  beat.loads = std::move(load.edges);
  beat.groups = std::move(load.groups);
  beat.instances = std::move(load.instances);
  if (connections_ != nullptr)
    for (const ConnectionStatus& connection : connections_->status())
      beat.connections.push_back(report_of(connection));
  fit(beat);
  return beat;
}

ConnectionReport report_of(const ConnectionStatus& status) {
  ConnectionReport report;
  report.peer = status.peer.value;
  report.incarnation = status.incarnation;
  report.is_up = status.state == ConnectionState::kUp;
  report.sent_messages = status.sent.num_messages;
  report.sent_bytes = status.sent.num_bytes;
  report.received_messages = status.received.num_messages;
  report.received_bytes = status.received.num_bytes;
  report.unacknowledged_messages = status.unacknowledged.num_messages;
  report.unacknowledged_bytes = status.unacknowledged.num_bytes;
  report.num_frames_resent = status.num_frames_resent;
  report.num_breaks = status.num_breaks;
  report.round_trip_ns = status.round_trip.to_nanoseconds();
  report.sent_stream_bytes = status.num_stream_bytes_sent;
  report.received_stream_bytes = status.num_stream_bytes_received;
  return report;
}

StallReport RunMember::stall_report() const {
  return is_prepared_ ? executor_->stall_report() : StallReport();
}

ConnectionEvents connection_events(RunMember::Say say, std::function<void(const Error&)> failed,
                                   std::function<void(const std::string&)> changed) {
  ConnectionEvents events;
  events.all_live = [say] { say(Payload::of(PeersConnected{})); };
  events.tenant_finished = [say](TenantSlot tenant, uint32_t tenancy, const std::string& fault) {
    say(Payload::of(TenantFinished{tenant, fault, tenancy}));
  };
  events.failed = std::move(failed);
  events.changed = std::move(changed);
  return events;
}

}  // namespace primerl
