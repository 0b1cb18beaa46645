// What GroupLinks tells of its messages: counts for the ledger, the load, reports, and slots that
// drain.
#include <algorithm>

#include "runtime/exec/group_links.h"

namespace primerl {

void GroupLinks::grant_at_once(bool at_once) {
  grants_at_once_ = at_once;
  if (!at_once) return;
  for (uint32_t i = 0; i < inbox_.links.size(); ++i)
    if (inbox_.links[i].is_ungranted && in_peer_[i] != PeerBatches::kNone)
      peers_.mark_due(in_peer_[i]);
}

bool GroupLinks::holds_of(TenantSlot slot) const {
  bool holds = false;
  inbox_.visit([&](const Input& input) {
    const bool is_message = input.kind == StepKind::kMessage;
    holds = holds || (is_message ? input.envelope.tenant == slot
                                 : input.kind != StepKind::kTenant &&
                                       common_.tenant_of(input.actor) == slot);
  });
  const auto is_in = [slot](const Ring<Envelope>& ring) {
    for (uint64_t at = ring.head(); at != ring.tail(); ++at)
      if (ring.at(at).tenant == slot) return true;
    return false;
  };
  for (const OutLink& out : common_.flow->links)
    holds = holds || is_in(out.outbox) || is_in(out.unacknowledged);
  return holds;
}

uint64_t GroupLinks::num_held() const {
  uint64_t held = 0;
  for (const auto& in : inbox_.links) held += in.num_waiting.get() + in.num_in_hand.get();
  for (const auto& out : common_.flow->links) held += out.outbox.size();
  return held;
}

void GroupLinks::describe(GroupView& view) const {
  for (const OutLink& out : common_.flow->links)
    if (!out.link->is_feedback && out.unsettled() >= static_cast<uint64_t>(out.link->capacity))
      view.full.push_back(out.id);
  for (const InLink& in : inbox_.links)
    if (in.is_paused.get() != 0 && in.num_waiting.get() > 0) view.paused.push_back(in.id);
}

void GroupLinks::add_to(std::span<EdgeLedger> ledger) const {
  for (const OutLink& out : common_.flow->links) {
    EdgeLedger& edge = ledger[out.link->edge.index()];
    edge.sent += out.past_sent.get() + out.num_emitted.get();
    edge.returned += out.num_returned.get();
    edge.handled += out.past_handled.get();
    edge.dropped += out.past_dropped.get() + out.num_overwritten.get();
    // Messages in the outbox or in transit. The receiver subtracts those that have arrived.
    edge.in_flight += out.num_emitted.get() - out.num_overwritten.get();
    edge.waiting_max = std::max(edge.waiting_max, out.waiting_max.get());
  }
  for (const InLink& in : inbox_.links) {
    EdgeLedger& edge = ledger[in.link->edge.index()];
    const uint64_t refused = in.num_refused_incarnations.get();
    edge.sent += in.sent_by_dead.get() + refused;
    edge.handled += in.num_handled.get();
    edge.failed += in.num_failed.get();
    edge.dropped += in.num_overwritten.get() + refused;
    edge.in_flight += in.num_waiting.get() + in.num_in_hand.get() + in.sent_by_dead.get();
    edge.in_flight -= in.num_received.get();
    if (in.link->is_feedback) edge.waiting_max = std::max(edge.waiting_max, in.waiting_max.get());
  }
}

void GroupLinks::add_load(std::span<EdgeLoad> edges, std::vector<InstanceLoad>& instances,
                          Time now) const {
  for (const OutLink& out : common_.flow->links) {
    EdgeLoad& edge = edges[out.link->edge.index()];
    // Each counter is exact, but the two may be from different moments.
    const uint64_t held = out.num_emitted.get() - out.num_overwritten.get();
    edge.num_held_back += held - std::min(held, out.num_shipped.get());
    const uint64_t unsettled = held - std::min(held, out.num_settled.get());
    edge.unsettled_max = std::max(edge.unsettled_max, unsettled);
    edge.blocked_ns += out.blocked_until(now);
  }
  const size_t first = instances.size();
  for (size_t i = 0; i < common_.planned().instances.size(); ++i) {
    InstanceLoad& load = instances.emplace_back();
    load.instance = common_.planned().instances[i].value;
    for (const auto& [name, value] : common_.counters[i].values())
      load.counts.push_back({name, value});
  }
  for (const InLink& in : inbox_.links) {
    const uint64_t waiting = in.num_waiting.get();
    edges[in.link->edge.index()].num_waiting += waiting;
    InstanceLoad& load = instances[first + in.actor];
    load.num_waiting += waiting;
    load.num_handled += in.num_handled.get();
    load.num_failed += in.num_failed.get();
  }
}

}  // namespace primerl
