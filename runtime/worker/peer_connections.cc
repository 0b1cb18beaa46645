#include "runtime/worker/peer_connections.h"

#include <algorithm>

#include "graph/weight_backend.h"

namespace primerl {

EdgeTransport transport_between(const Plan& plan, ProcessId one, ProcessId other) {
  const auto has = [&plan](const PlanNode& node, ProcessId process) {
    return std::any_of(node.instances.begin(), node.instances.end(),
                       [&](InstanceId each) { return plan.process_of(each) == process; });
  };
  for (const PlanEdge& edge : plan.edges) {
    // An edge inside a place does not join two replicas of that place.
    if (one == other || edge.transport == EdgeTransport::kMemory) continue;
    const PlanNode &from = plan.node(edge.from), &to = plan.node(edge.to);
    if ((has(from, one) && has(to, other)) || (has(from, other) && has(to, one)))
      return edge.transport;
  }
  if (one == other || !are_joined_by_weights(plan, one, other)) return EdgeTransport::kMemory;
  const bool is_one_machine = plan.process(one).machine == plan.process(other).machine;
  return is_one_machine ? EdgeTransport::kIpc : EdgeTransport::kTcp;
}

PeerConnections::~PeerConnections() { close(); }

Result<std::vector<PeerAddress>> PeerConnections::open(const Make& make) {
  ASSIGN_OR_RETURN(transport_, make(*this));
  return transport_->addresses();
}

void PeerConnections::add_credentials(PeerSpec& peer) const {
  const auto entry = std::find_if(allowed_.begin(), allowed_.end(), [&](const AllowedKey& each) {
    return each.process == peer.process && each.public_key == peer.public_key;
  });
  if (entry != allowed_.end()) peer.tenants = entry->tenants;
}

Status PeerConnections::connect(std::vector<PeerSpec> peers) {
  for (PeerSpec& peer : peers) add_credentials(peer);
  {
    const std::lock_guard lock(mutex_);
    for (const PeerSpec& peer : peers) {
      names_[peer.process] = peer.name;
      waiting_.insert(peer.process);
    }
  }
  for (const PeerSpec& peer : peers)
    if (const Status added = transport_->add_peer(peer); !added.ok())
      return Error(added.error()).while_doing(fmt::format("linking up with '{}'", peer.name));
  if (peers.empty()) events_.all_live();
  return ok();
}

void PeerConnections::end_peer(ProcessId peer, uint32_t incarnation) {
  transport_->end_peer(peer, incarnation);
  if (streams_ != nullptr) streams_->ended(peer, incarnation);
}

Status PeerConnections::join(PeerSpec peer) {
  add_credentials(peer);
  return transport_->add_peer(std::move(peer));
}

void PeerConnections::receive(Take take) {
  const std::lock_guard lock(mutex_);
  take_ = std::move(take);
  for (auto& [from, batch] : early_) {
    const Status taken = take_(from, std::move(batch));
    if (!taken.ok()) note_refused(from, taken.error());
  }
  early_.clear();
}

void PeerConnections::refused(ProcessId from, const Error& why) {
  const std::lock_guard lock(mutex_);
  note_refused(from, why);
}

/// Call with mutex_ held. Reported once per peer, so that the log is bounded.
void PeerConnections::note_refused(ProcessId from, const Error& why) {
  if (++num_refused_[from] > 1 || is_leaving_) return;
  events_.changed(
      fmt::format("'{}' sent what it may not: that is left out, and so is more of it without a "
                  "word: {}",
                  name_of(from), why.message()));
}

void PeerConnections::leave() {
  const std::lock_guard lock(mutex_);
  is_leaving_ = true;
}

void PeerConnections::close() {
  leave();
  {
    const std::lock_guard lock(mutex_);
    take_ = nullptr;
  }
  // A run that ended well has drained. Only grants of credit are in flight, which are not needed
  // any more.
  if (transport_ != nullptr) (void)transport_->close(Duration());
}

std::vector<ConnectionStatus> PeerConnections::status() const {
  auto all = transport_ == nullptr ? std::vector<ConnectionStatus>() : transport_->status();
  const std::lock_guard lock(mutex_);
  for (ConnectionStatus& status : all)
    if (const auto found = num_refused_.find(status.peer); found != num_refused_.end())
      status.refused[static_cast<size_t>(FrameRefusal::kPlan)] += found->second;
  return all;
}

Status PeerConnections::send(ProcessId to, MessageBatch&& batch) {
  return transport_->send(to, std::move(batch));
}

void PeerConnections::tenant_failed(TenantSlot tenant, uint32_t tenancy, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    const auto [known, is_new] = finished_.try_emplace(tenant, tenancy);
    // A tenant that has finished may still fail when it ends.
    if (!is_new && known->second == tenancy && why.empty()) return;
    known->second = tenancy;
  }
  events_.tenant_finished(tenant, tenancy, why);
}

void PeerConnections::deliver(ProcessId from, MessageBatch&& batch) {
  const std::lock_guard lock(mutex_);
  if (!take_) {
    if (!is_leaving_) early_.emplace_back(from, std::move(batch));
    return;
  }
  const Status taken = take_(from, std::move(batch));
  if (!taken.ok()) note_refused(from, taken.error());
}

void PeerConnections::on_connection_up(ProcessId peer, uint32_t) {
  bool are_all_live = false;
  {
    const std::lock_guard lock(mutex_);
    const bool is_first = waiting_.erase(peer) > 0;
    are_all_live = is_first && waiting_.empty();
    if (!is_first && !is_leaving_)
      events_.changed(fmt::format("the connection with '{}' is back", name_of(peer)));
  }
  if (are_all_live) events_.all_live();
}

void PeerConnections::on_connection_down(ProcessId peer, uint32_t, const Error& why) {
  const std::lock_guard lock(mutex_);
  if (!is_leaving_)
    events_.changed(
        fmt::format("the connection with '{}' broke: {}", name_of(peer), why.message()));
}

void PeerConnections::on_refused(const ConnectionRefusal& refusal) {
  if (!refusal.ends_connection) {
    const std::lock_guard lock(mutex_);
    if (!is_leaving_) events_.changed(refusal.text());
    return;
  }
  fail(error(Code::kInvalid, "{}", refusal.text()));
}

void PeerConnections::on_connection_failed(ProcessId peer, uint32_t, const Error& why) {
  fail(Error(why).while_doing(fmt::format("the connection with '{}'", name_of(peer))));
}

void PeerConnections::fail(const Error& why) {
  {
    const std::lock_guard lock(mutex_);
    if (is_leaving_ || std::exchange(has_failed_, true)) return;
  }
  events_.failed(why);
}

/// May be called with mutex_ held, because names are set before their connections exist.
std::string PeerConnections::name_of(ProcessId peer) const {
  const auto found = names_.find(peer);
  return found == names_.end() ? fmt::format("process {}", peer.value) : found->second;
}

}  // namespace primerl
