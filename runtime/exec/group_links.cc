// The links of a group: routing and releasing emissions, batches and grants, peers, the ledger.
#include <algorithm>

#include "runtime/exec/group_body.h"

namespace primerl {

void ActorGroup::Body::release(Running& running, Time now) {
  for (PendingEmission& emission : running.emissions) route(running, emission, now);
  running.emissions.clear();
}

void ActorGroup::Body::route(Running& running, PendingEmission& emission, Time now) {
  auto& flow = *common_->flow;
  const OutputFlow& output = flow.outputs[running.index()][emission.output];
  if (output.links.empty()) return;  // an optional output that is not connected
  Envelope& envelope = emission.envelope;
  envelope.incarnation = setup().incarnation;
  envelope.blob_bytes = envelope.payload.type->blob_bytes(envelope.payload.message.get());
  const auto serves = [&](const OutLink& out) {
    return out.link->target_tenant.is_none() || out.link->target_tenant == envelope.tenant;
  };
  if (output.links.size() == 1 && output.any_blocks) {
    OutLink& only = flow.links[output.links.front()];
    const bool reaches =
        output.port->routing != Routing::kToOrigin || only.link->target == envelope.origin;
    if (serves(only) && reaches) return emit_on(only, std::move(envelope), now);
  }
  const InstanceId target =
      output.port->routing == Routing::kToOrigin ? envelope.origin : emission.target;
  OutLink* last = nullptr;  // gets the envelope itself; the other targets get a copy
  uint64_t best = 0;
  for (uint32_t index : output.links) {
    OutLink& out = flow.links[index];
    if (!serves(out)) continue;
    switch (output.port->routing) {
      case Routing::kToOne:
        last = last == nullptr ? &out : last;
        continue;
      case Routing::kKeyed: {
        // Rendezvous hashing: when a target dies, only that target's keys move.
        if (!out.is_live) continue;
        const uint64_t key = output.port->key(envelope.payload.message.get());
        const uint64_t weight = mix(key, out.link->target.value) | 1;
        if (weight > best) last = &out;
        best = std::max(best, weight);
        continue;
      }
      case Routing::kBroadcast:
        break;
      case Routing::kAddressed:
      case Routing::kToOrigin:
        if (out.link->target != target) continue;
        break;
    }
    if (last != nullptr) emit_on(*last, Envelope(envelope), now);
    last = &out;
  }
  if (last != nullptr) return emit_on(*last, std::move(envelope), now);
  // There is no target: the tenant has no receiving instance, the last keyed target has died, or
  // the origin is not connected to this instance (an envelope of another process may name such an
  // origin). Only in these cases a message may be dropped.
  const Routing routing = output.port->routing;
  const bool may_miss =
      routing == Routing::kBroadcast || routing == Routing::kKeyed || routing == Routing::kToOrigin;
  CHECK(may_miss,
        fmt::format("'{}.{}' does not reach instance {} for tenant {}", running.self_name(),
                    output.port->name, target.value, envelope.tenant.value));
  running.count("without_target", 1);
}

void ActorGroup::Body::emit_on(OutLink& out, Envelope&& envelope, Time now) {
  envelope.edge = out.link->edge;
  envelope.target = out.link->target;
  // Counts emissions, not shipped messages. A latest_wins message that is overwritten in the outbox
  // leaves a gap, so a sequence number does not depend on when credit arrived.
  envelope.sequence = out.is_live ? out.num_emitted.get() + 1 : 0;
  ++num_step_emissions_;
  if (observes_[out.link->out_index]) recorded_.push_back({out.id, envelope});
  set_now(now);
  if (setup().step_source != nullptr && out.is_live && out.link->is_remote) {
    const EmissionFate fate =
        setup().step_source->emission_fate(out.id, envelope.sequence, out.num_shipped.get());
    if (fate != EmissionFate::kSend && fate != EmissionFate::kSendLater)
      return common_->flow->emit_known(out, envelope, fate);
    if (common_->flow->emit(out, envelope, fate)) ship(out, std::move(envelope));
    return;
  }
  if (common_->flow->emit(out, envelope)) ship(out, std::move(envelope));
}

void ActorGroup::Body::grant(OutLink& out, uint64_t num_messages, uint64_t num_bytes) {
  common_->flow->grant(out, num_messages, num_bytes, [this](OutLink& link, Envelope&& envelope) {
    ship(link, std::move(envelope));
  });
}

void ActorGroup::Body::ship(OutLink& out, Envelope&& envelope) {
  num_shipped_.add(1);
  const uint32_t peer = out_peer_[out.link->out_index];
  if (peer == Inbox::kNone) {
    num_received_.add(1);
    const Status taken = inbox_.receive(out.link->in_index, std::move(envelope), now_);
    CHECK(taken.ok(), "a group refused a message of its own");
    check_bound(inbox_.links[out.link->in_index]);
    return;
  }
  auto& open = batches_[peer];
  if (!open.is_due) {
    touch(peer);
    open.is_due = true;
  }
  open.batch.messages.emplace_back(out.id, std::move(envelope));
}

void ActorGroup::Body::touch(uint32_t peer) {
  if (batches_[peer].is_touched) return;
  batches_[peer].is_touched = true;
  touched_.push_back(peer);
}

void ActorGroup::Body::settle(const Input& input) {
  InLink& in = inbox_.links[input.in_index];
  in.num_handled.add(1);
  in.num_in_hand.set(0);
  // Its sender is gone, and so is that sender's credit.
  if (input.envelope.incarnation != in.incarnation) return;
  in.settled_messages += 1;
  in.settled_bytes += input.envelope.blob_bytes;
  // No sender waits for that credit; the total is granted when the group resumes.
  if (!input.is_stored) grant_when_due(input.in_index);
}

void ActorGroup::Body::grant_when_due(uint32_t in_index) {
  InLink& in = inbox_.links[in_index];
  const uint32_t peer = in_peer_[in_index];
  if (peer == Inbox::kNone) {
    OutLink& out = common_->flow->links[in.link->out_index];
    grant(out, in.settled_messages, in.settled_bytes);
    return;
  }
  auto& open = batches_[peer];
  if (!in.is_ungranted) {
    in.is_ungranted = true;
    open.ungranted.push_back(in_index);
  }
  // Bytes are granted at once when no message of the link waits here. Otherwise a message larger
  // than the rest of the window would wait forever.
  const uint64_t bytes = in.settled_bytes - in.granted_bytes;
  const bool is_last = in.num_waiting.get() == 0 && bytes > 0;
  if (!is_last && in.settled_messages - in.granted_messages < in.link->grant_messages &&
      bytes < in.link->grant_bytes)
    return;
  mark_due(peer);
}

/// The peer's batch must leave at the end of this step or burst.
void ActorGroup::Body::mark_due(uint32_t peer) {
  touch(peer);
  batches_[peer].is_due = true;
}

void ActorGroup::Body::flush() {
  for (uint32_t peer : touched_) {
    auto& open = batches_[peer];
    open.is_touched = false;
    if (!std::exchange(open.is_due, false)) continue;
    for (uint32_t index : open.ungranted) {
      InLink& in = inbox_.links[index];
      in.is_ungranted = false;
      in.granted_messages = in.settled_messages;
      in.granted_bytes = in.settled_bytes;
      open.batch.grants.push_back({in.id, in.settled_messages, in.settled_bytes, in.incarnation});
    }
    open.ungranted.clear();
    open.batch.cut = cut_;
    setup().executor->ship(std::move(open.batch));
    open.batch.messages.clear();
    open.batch.grants.clear();
  }
  touched_.clear();
}

Status ActorGroup::Body::accept(MessageBatch&& batch, Time now) {
  set_now(now);
  const uint32_t peer = peer_index(batch.from);
  if (peer == Inbox::kNone)
    return error(Code::kCorrupt, "'{}' got a batch of group {}, with which it shares no edge",
                 planned_.name, batch.from.value);
  if (batch.incarnation < batches_[peer].peer_incarnation) batch.grants.clear();
  const bool is_local = setup().cuts != nullptr && !is_remote(peer);
  if (is_local && batch.cut > cut_) cut(batch.cut, now);
  if (is_local && batch.cut < cut_)
    for (const BatchedMessage& message : batch.messages)
      setup().cuts->add_in_transit(cut_, saved_message(message.link, message.envelope));
  Status first;  // first error; invalid parts are skipped, the rest of the batch is accepted
  const auto note = [&first](Status status) {
    if (first.ok() && !status.ok()) first = std::move(status);
  };
  for (const Grant& given : batch.grants) note(accept_grant(batch.from, given));
  for (BatchedMessage& message : batch.messages) {
    num_received_.add(1);
    note(accept_message(batch.from, std::move(message), now));
  }
  after_change();
  return first;
}

Status ActorGroup::Body::accept_grant(GroupId from, const Grant& given) {
  const auto& links = setup().wiring->links;
  if (given.link.index() >= links.size() ||
      links[given.link.index()].sender_group != setup().group ||
      links[given.link.index()].target_group != from)
    return error(Code::kCorrupt, "'{}' got a grant for link {}, which it does not send on",
                 planned_.name, given.link.value);
  OutLink& out = common_->flow->links[links[given.link.index()].out_index];
  // Ignores credit for messages of an earlier incarnation of this group.
  if (given.incarnation != setup().incarnation || !out.is_live) return ok();
  if (!common_->flow->may_settle(out, given.num_messages, given.num_bytes))
    return error(Code::kCorrupt,
                 "'{}' got a grant for {} messages and {} bytes of edge '{}', on which it has sent "
                 "{} and {}",
                 planned_.name, given.num_messages, given.num_bytes,
                 setup().plan->edge(out.link->edge).name, out.num_shipped.get(), out.bytes_shipped);
  grant(out, given.num_messages, given.num_bytes);
  return ok();
}

Status ActorGroup::Body::accept_message(GroupId from, BatchedMessage&& message, Time now) {
  const auto& links = setup().wiring->links;
  if (message.link.index() >= links.size() ||
      links[message.link.index()].target_group != setup().group ||
      links[message.link.index()].sender_group != from)
    return error(Code::kCorrupt, "'{}' got a message of link {}, which does not end here",
                 planned_.name, message.link.value);
  const uint32_t in_index = links[message.link.index()].in_index;
  InLink& in = inbox_.links[in_index];
  const uint64_t settled = in.settled_messages;
  auto status = inbox_.receive(in_index, std::move(message.envelope), now);
  if (!status.ok())
    return Error(status.error())
        .while_doing(fmt::format("edge '{}'", setup().plan->edge(in.link->edge).name));
  if (in.settled_messages != settled) grant_when_due(in_index);
  check_bound(in);
  return ok();
}

void ActorGroup::Body::check_bound(InLink& in) {
  // While a record is followed, senders may be further ahead than in the recorded run.
  if (setup().step_source != nullptr) return;
  const uint64_t num_waiting = in.num_waiting.get();
  if (num_waiting <= static_cast<uint64_t>(in.link->bound)) in.excess = 0;
  if (num_waiting <= static_cast<uint64_t>(in.link->bound) + in.excess || in.is_bound_exceeded)
    return;
  in.is_bound_exceeded = true;
  setup().executor->group_failed(
      setup().group,
      error(Code::kInternal, "edge '{}' had {} messages waiting, its bound is {}",
            setup().plan->edge(in.link->edge).name, num_waiting, in.link->bound)
          .note("a contract states too small a number: at_most, burst or work_burst"));
}

void ActorGroup::Body::peer_down(GroupId peer, uint32_t incarnation, Time now) {
  set_now(now);
  flush();  // ships messages written for the dead peer before the sequence numbers restart
  for (OutLink& out : common_->flow->links)
    if (out.link->target_group == peer) common_->flow->close(out);
  for (InLink& in : inbox_.links)
    if (in.link->sender_group == peer && in.incarnation <= incarnation)
      inbox_.reopen(in, incarnation + 1);
  set_peer_incarnation(peer, incarnation + 1);
  tell_peer_event(peer, PeerEvent::Kind::kDown, incarnation, now);
  after_change();
}

void ActorGroup::Body::peer_up(GroupId peer, uint32_t incarnation, Time now) {
  set_now(now);
  for (OutLink& out : common_->flow->links)
    if (out.link->target_group == peer) common_->flow->reopen(out);
  for (InLink& in : inbox_.links)
    if (in.link->sender_group == peer && in.incarnation < incarnation)
      inbox_.reopen(in, incarnation);
  set_peer_incarnation(peer, incarnation);
  tell_peer_event(peer, PeerEvent::Kind::kUp, incarnation, now);
  after_change();
}

/// In the recorded run a peer's process died or was restarted, and its links with it, before the
/// first actor was notified. The receiving sides follow the incarnations of the handled messages.
void ActorGroup::Body::follow_peer(uint32_t actor, const PeerEvent& event) {
  const GroupId peer = setup().plan->instance(event.instance).group;
  const bool is_up = event.kind == PeerEvent::Kind::kUp;
  for (OutLink& out : common_->flow->links) {
    if (out.link->target_group != peer || out.is_live == is_up) continue;
    if (is_up) {
      common_->flow->reopen(out);
    } else {
      common_->flow->close(out);
    }
  }
  told_[{actor, event.instance}] = event.kind;
}

void ActorGroup::Body::set_peer_incarnation(GroupId peer, uint32_t incarnation) {
  const uint32_t index = peer_index(peer);
  if (index == Inbox::kNone) return;
  auto& open = batches_[index];
  open.peer_incarnation = std::max(open.peer_incarnation, incarnation);
}

void ActorGroup::Body::tell_peer_event(GroupId peer, PeerEvent::Kind kind, uint32_t incarnation,
                                       Time now) {
  const auto tell = [&](uint32_t actor, InstanceId neighbour) {
    // The actor may have been notified already in its record, which ended before the next event.
    const auto told = told_.find({actor, neighbour});
    const bool has_heard = told != told_.end() && told->second == kind;
    if (told != told_.end()) told_.erase(told);
    if (has_heard) return;
    Input input;
    input.kind = StepKind::kPeer;
    input.actor = actor;
    input.peer = {kind, neighbour, incarnation};
    inbox_.push_control(std::move(input), now);
  };
  for (uint32_t actor = 0; actor < slots_.size(); ++actor) {
    std::vector<InstanceId> neighbours;
    for (const OutLink& out : common_->flow->links)
      if (out.actor == actor && out.link->target_group == peer)
        neighbours.push_back(out.link->target);
    for (const InLink& in : inbox_.links)
      if (in.actor == actor && in.link->sender_group == peer) neighbours.push_back(in.link->sender);
    std::sort(neighbours.begin(), neighbours.end());
    neighbours.erase(std::unique(neighbours.begin(), neighbours.end()), neighbours.end());
    for (InstanceId neighbour : neighbours) tell(actor, neighbour);
  }
}

void ActorGroup::Body::add_to(std::span<EdgeLedger> ledger) const {
  for (const OutLink& out : common_->flow->links) {
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

void ActorGroup::Body::add_load(std::span<EdgeLoad> edges, std::vector<InstanceLoad>& instances,
                                Time now) const {
  for (const OutLink& out : common_->flow->links) {
    EdgeLoad& edge = edges[out.link->edge.index()];
    // Each counter is exact, but the two may be from different moments.
    const uint64_t held = out.num_emitted.get() - out.num_overwritten.get();
    edge.num_held_back += held - std::min(held, out.num_shipped.get());
    const uint64_t unsettled = held - std::min(held, out.num_settled.get());
    edge.unsettled_max = std::max(edge.unsettled_max, unsettled);
    edge.blocked_ns += out.blocked_until(now);
  }
  const size_t first = instances.size();
  for (size_t i = 0; i < planned_.instances.size(); ++i) {
    InstanceLoad& load = instances.emplace_back();
    load.instance = planned_.instances[i].value;
    for (const auto& [name, value] : common_->counters[i].values())
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
