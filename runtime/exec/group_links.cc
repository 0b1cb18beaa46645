#include "runtime/exec/group_links.h"

#include <algorithm>

#include "runtime/exec/link_state.h"

namespace primerl {

GroupLinks::GroupLinks(GroupCommon& common)
    : common_(common),
      inbox_(*setup().plan, *setup().wiring, setup().group, setup().step_source != nullptr),
      peers_(common),
      counts_slots_(setup().plan->settings.tenant_limits.are_set() ||
                    !setup().plan->free_slots.empty()),
      slot_shipped_(setup().wiring->num_slots),
      slot_received_(setup().wiring->num_slots) {
  for (const InLink& in : inbox_.links) in_peer_.push_back(peers_.index_of(in.link->sender_group));
  for (const OutLink& out : common_.flow->links)
    out_peer_.push_back(peers_.index_of(out.link->target_group));
  choose_observed();
}

void GroupLinks::choose_observed() {
  observes_.clear();
  for (const OutLink& out : common_.flow->links)
    observes_.push_back(setup().observer != nullptr && setup().observer->wants_emissions(out.id));
}

void GroupLinks::release(Running& running) {
  for (PendingEmission& emission : running.emissions) route(running, emission);
  running.emissions.clear();
}

void GroupLinks::forget_emissions() {
  observed_.clear();
  num_emissions_ = 0;
}

void GroupLinks::route(Running& running, PendingEmission& emission) {
  auto& flow = *common_.flow;
  const OutputFlow& output = flow.outputs[running.index()][emission.output];
  if (output.links.empty()) return;  // an optional output that is not connected
  Envelope& envelope = emission.envelope;
  // A shared actor answers for a tenant that has left.
  if (common_.tenants.is_free(envelope.tenant)) return running.count("without_target", 1);
  envelope.incarnation = setup().incarnation;
  envelope.blob_bytes = envelope.payload.type->blob_bytes(envelope.payload.message.get());
  const auto serves = [&](const OutLink& out) {
    return out.link->target_tenant.is_none() || out.link->target_tenant == envelope.tenant;
  };
  if (output.links.size() == 1 && output.any_blocks) {
    OutLink& only = flow.links[output.links.front()];
    const bool reaches =
        output.port->routing != Routing::kToOrigin || only.link->target == envelope.origin;
    if (serves(only) && reaches) return emit_on(only, std::move(envelope));
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
    if (last != nullptr) emit_on(*last, Envelope(envelope));
    last = &out;
  }
  if (last != nullptr) return emit_on(*last, std::move(envelope));
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

void GroupLinks::emit_on(OutLink& out, Envelope&& envelope) {
  envelope.edge = out.link->edge;
  envelope.target = out.link->target;
  // Counts emissions, not shipped messages. A latest_wins message that is overwritten in the outbox
  // leaves a gap, so a sequence number does not depend on when credit arrived.
  envelope.sequence = out.is_live ? out.num_emitted.get() + 1 : 0;
  ++num_emissions_;
  if (observes_[out.link->out_index]) observed_.push_back({out.id, envelope});
  if (setup().step_source != nullptr && out.is_live && out.link->is_remote) {
    const EmissionFate fate =
        setup().step_source->emission_fate(out.id, envelope.sequence, out.num_shipped.get());
    if (fate != EmissionFate::kSend && fate != EmissionFate::kSendLater)
      return common_.flow->emit_known(out, envelope, fate);
    if (common_.flow->emit(out, envelope, fate)) ship(out, std::move(envelope));
    return;
  }
  if (common_.flow->emit(out, envelope)) ship(out, std::move(envelope));
}

void GroupLinks::grant(OutLink& out, uint64_t num_messages, uint64_t num_bytes) {
  common_.flow->grant(out, num_messages, num_bytes, [this](OutLink& link, Envelope&& envelope) {
    ship(link, std::move(envelope));
  });
}

void GroupLinks::ship(OutLink& out, Envelope&& envelope) {
  num_shipped_.add(1);
  const bool counts = counts_slots_ && !out.link->is_remote && !envelope.tenant.is_none();
  if (counts) slot_shipped_[envelope.tenant.index()].add(1);
  const uint32_t peer = out_peer_[out.link->out_index];
  if (peer == PeerBatches::kNone) {
    num_received_.add(1);
    if (counts) slot_received_[envelope.tenant.index()].add(1);
    const Status taken = inbox_.receive(out.link->in_index, std::move(envelope), now_);
    CHECK(taken.ok(), "a group refused a message of its own");
    check_bound(inbox_.links[out.link->in_index]);
    return;
  }
  peers_.add(peer, out.id, std::move(envelope));
}

void GroupLinks::acknowledge(const Input& input) {
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

void GroupLinks::grant_when_due(uint32_t in_index) {
  InLink& in = inbox_.links[in_index];
  const uint32_t peer = in_peer_[in_index];
  if (peer == PeerBatches::kNone) {
    OutLink& out = common_.flow->links[in.link->out_index];
    grant(out, in.settled_messages, in.settled_bytes);
    return;
  }
  if (!in.is_ungranted) {
    in.is_ungranted = true;
    peers_.request_grant(peer, in_index);
  }
  // Bytes are granted at once when no message of the link waits here. Otherwise a message larger
  // than the rest of the window would wait forever.
  const uint64_t bytes = in.settled_bytes - in.granted_bytes;
  const bool is_last = in.num_waiting.get() == 0 && bytes > 0;
  if (!is_last && !grants_at_once_ &&
      in.settled_messages - in.granted_messages < in.link->grant_messages &&
      bytes < in.link->grant_bytes)
    return;
  peers_.mark_due(peer);
}

Status GroupLinks::accept(uint32_t peer, MessageBatch&& batch) {
  if (peers_.is_old(peer, batch.incarnation)) batch.grants.clear();
  Status first;  // first error; invalid parts are skipped, the rest of the batch is accepted
  const auto note = [&first](Status status) {
    if (first.ok() && !status.ok()) first = std::move(status);
  };
  for (const Grant& given : batch.grants) note(accept_grant(batch.from, given));
  for (BatchedMessage& message : batch.messages) {
    num_received_.add(1);
    note(accept_message(batch.from, std::move(message)));
  }
  return first;
}

Status GroupLinks::accept_grant(GroupId from, const Grant& given) {
  const auto& links = setup().wiring->links;
  if (given.link.index() >= links.size() ||
      links[given.link.index()].sender_group != setup().group ||
      links[given.link.index()].target_group != from)
    return error(Code::kCorrupt, "'{}' got a grant for link {}, which it does not send on",
                 common_.planned().name, given.link.value);
  OutLink& out = common_.flow->links[links[given.link.index()].out_index];
  // Ignores credit for messages of an earlier incarnation of this group.
  if (given.incarnation != setup().incarnation || !out.is_live) return ok();
  if (!common_.flow->may_settle(out, given.num_messages, given.num_bytes))
    return error(Code::kCorrupt,
                 "'{}' got a grant for {} messages and {} bytes of edge '{}', on which it has sent "
                 "{} and {}",
                 common_.planned().name, given.num_messages, given.num_bytes,
                 setup().plan->edge(out.link->edge).name, out.num_shipped.get(), out.bytes_shipped);
  grant(out, given.num_messages, given.num_bytes);
  return ok();
}

Status GroupLinks::accept_message(GroupId from, BatchedMessage&& message) {
  const auto& links = setup().wiring->links;
  if (message.link.index() >= links.size() ||
      links[message.link.index()].target_group != setup().group ||
      links[message.link.index()].sender_group != from)
    return error(Code::kCorrupt, "'{}' got a message of link {}, which does not end here",
                 common_.planned().name, message.link.value);
  // A message for a free slot is taken and handled without its actor (Running::handle()). A shared
  // actor may still answer a tenant that failed when it has left here, and in a group that follows
  // its record the tenant may join at a later step.
  const uint32_t in_index = links[message.link.index()].in_index;
  InLink& in = inbox_.links[in_index];
  if (const TenantSlot slot = message.envelope.tenant; counts_slots_ && !in.link->is_remote &&
                                                       !slot.is_none() &&
                                                       slot.index() < slot_received_.size())
    slot_received_[slot.index()].add(1);
  const uint64_t settled = in.settled_messages;
  auto status = inbox_.receive(in_index, std::move(message.envelope), now_);
  if (!status.ok())
    return Error(status.error())
        .while_doing(fmt::format("edge '{}'", setup().plan->edge(in.link->edge).name));
  if (in.settled_messages != settled) grant_when_due(in_index);
  check_bound(in);
  return ok();
}

void GroupLinks::check_bound(InLink& in) {
  // While a record is followed, senders may be further ahead than in the recorded run.
  if (setup().step_source != nullptr) return;
  const uint64_t num_waiting = in.num_waiting.get();
  const auto bound = static_cast<uint64_t>(in.link->bound);
  if (num_waiting <= bound) in.excess = 0;
  if (num_waiting <= bound + std::max(in.excess, in.repeated) || in.is_bound_exceeded) return;
  in.is_bound_exceeded = true;
  setup().executor->group_failed(
      setup().group,
      error(Code::kInternal, "edge '{}' had {} messages waiting, its bound is {}",
            setup().plan->edge(in.link->edge).name, num_waiting, in.link->bound)
          .note("a contract states too small a number: at_most, burst or work_burst"));
}

/// An actor that sends to a dead process repeats its requests. Answers to the first ones may wait
/// already, or come from a third process later; so twice as many may wait.
void GroupLinks::expect_repeated_answers(GroupId dead) {
  std::vector<bool> repeats(common_.planned().instances.size());
  for (const OutLink& out : common_.flow->links)
    if (out.link->target_group == dead) repeats[out.actor] = true;
  for (InLink& in : inbox_.links)
    if (repeats[in.actor] && in.link->is_feedback)
      in.repeated = static_cast<uint64_t>(in.link->bound);
}

void GroupLinks::peer_down(GroupId peer, uint32_t incarnation) {
  flush();  // ships messages written for the dead peer before the sequence numbers restart
  for (OutLink& out : common_.flow->links)
    if (out.link->target_group == peer) common_.flow->close(out);
  for (InLink& in : inbox_.links)
    if (in.link->sender_group == peer && in.incarnation <= incarnation)
      inbox_.reopen(in, incarnation + 1);
  expect_repeated_answers(peer);
  if (const uint32_t index = peers_.index_of(peer); index != PeerBatches::kNone)
    peers_.set_incarnation(index, incarnation + 1);
  notify_actors(peer, PeerEvent::Kind::kDown, incarnation);
}

void GroupLinks::peer_up(GroupId peer, uint32_t incarnation) {
  for (OutLink& out : common_.flow->links)
    if (out.link->target_group == peer) common_.flow->reopen(out);
  for (InLink& in : inbox_.links)
    if (in.link->sender_group == peer && in.incarnation < incarnation)
      inbox_.reopen(in, incarnation);
  if (const uint32_t index = peers_.index_of(peer); index != PeerBatches::kNone)
    peers_.set_incarnation(index, incarnation);
  notify_actors(peer, PeerEvent::Kind::kUp, incarnation);
}

/// The receiving sides follow the incarnations of the handled messages.
void GroupLinks::follow_peer(uint32_t actor, const PeerEvent& event) {
  const GroupId peer = setup().plan->instance(event.instance).group;
  const bool is_up = event.kind == PeerEvent::Kind::kUp;
  for (OutLink& out : common_.flow->links) {
    if (out.link->target_group != peer || out.is_live == is_up) continue;
    if (is_up) {
      common_.flow->reopen(out);
    } else {
      common_.flow->close(out);
    }
  }
  notified_[{actor, event.instance}] = event.kind;
}

void GroupLinks::notify_actors(GroupId peer, PeerEvent::Kind kind, uint32_t incarnation) {
  const auto notify = [&](uint32_t actor, InstanceId connected) {
    // The actor may have been notified already in its record, which ended before the next event.
    const auto last = notified_.find({actor, connected});
    const bool is_known = last != notified_.end() && last->second == kind;
    if (last != notified_.end()) notified_.erase(last);
    if (is_known) return;
    Input input;
    input.kind = StepKind::kPeer;
    input.actor = actor;
    input.peer = {kind, connected, incarnation};
    inbox_.push_control(std::move(input), now_);
  };
  for (uint32_t actor = 0; actor < common_.planned().instances.size(); ++actor) {
    std::vector<InstanceId> connected;
    for (const OutLink& out : common_.flow->links)
      if (out.actor == actor && out.link->target_group == peer)
        connected.push_back(out.link->target);
    for (const InLink& in : inbox_.links)
      if (in.actor == actor && in.link->sender_group == peer) connected.push_back(in.link->sender);
    std::sort(connected.begin(), connected.end());
    connected.erase(std::unique(connected.begin(), connected.end()), connected.end());
    for (InstanceId instance : connected) notify(actor, instance);
  }
}

void GroupLinks::resume() {
  common_.flow->resume();
  choose_observed();
  std::vector<uint64_t> settled;
  for (const InLink& in : inbox_.links) settled.push_back(in.settled_messages);
  inbox_.resume(now_);
  for (uint32_t i = 0; i < inbox_.links.size(); ++i) {
    const InLink& in = inbox_.links[i];
    const bool has_ungranted =
        in_peer_[i] != PeerBatches::kNone && in.settled_messages > in.granted_messages;
    if (in.settled_messages == settled[i] && !has_ungranted) continue;
    grant_when_due(i);
    if (has_ungranted) peers_.mark_due(in_peer_[i]);
  }
  // If a receiver's record ended before its sender's record, more messages wait than the bound
  // normally allows.
  for (InLink& in : inbox_.links) {
    const auto bound = static_cast<uint64_t>(in.link->bound);
    in.excess = in.num_waiting.get() - std::min(in.num_waiting.get(), bound);
  }
}

void GroupLinks::save(GroupState& state) const {
  state.num_shipped = num_shipped_.get();
  state.num_received = num_received_.get();
  for (const InLink& in : inbox_.links) state.in_links.push_back(saved_link(in));
  for (const OutLink& out : common_.flow->links) state.out_links.push_back(saved_link(out));
  state.peers = peers_.saved();
  for (size_t slot = 0; slot < slot_shipped_.size() && counts_slots_; ++slot) {
    state.slot_shipped.push_back(slot_shipped_[slot].get());
    state.slot_received.push_back(slot_received_[slot].get());
  }
}

/// A group that follows a record counts only what it sends and receives from now on. The two ends
/// of a link were saved at different moments, and the end of a drain is found by the difference of
/// these counts.
void GroupLinks::restore_counts(const GroupState& state) {
  const bool follows = setup().step_source != nullptr;
  num_shipped_.set(follows ? 0 : state.num_shipped);
  num_received_.set(follows ? 0 : state.num_received);
  for (size_t slot = 0; slot < state.slot_shipped.size() && !follows; ++slot) {
    slot_shipped_[slot].set(state.slot_shipped[slot]);
    slot_received_[slot].set(state.slot_received[slot]);
  }
}

void GroupLinks::restore_in(const GroupState& state) {
  const bool follows = setup().step_source != nullptr;
  for (uint32_t i = 0; i < inbox_.links.size(); ++i) {
    InLink& in = inbox_.links[i];
    load_link(state.in_links[i], in);
    inbox_.pause(in.actor, in.link->input, state.in_links[i].is_paused);
    if (follows) {
      // Grants may have been lost in transit, so all credit is granted again.
      in.is_ungranted = false;
      in.granted_messages = in.granted_bytes = 0;
    } else if (in.is_ungranted && in_peer_[i] != PeerBatches::kNone) {
      peers_.request_grant(in_peer_[i], i);
    }
  }
}

Status GroupLinks::restore_out(const GroupState& state) {
  const bool follows = setup().step_source != nullptr;
  Flow& flow = *common_.flow;
  for (uint32_t i = 0; i < flow.links.size(); ++i) {
    OutLink& out = flow.links[i];
    const SavedOutLink& saved = state.out_links[i];
    const MessageType& type = *common_.contract_of(out.actor).outputs[out.link->output].type;
    ASSIGN_OR_RETURN(auto outbox, restored_messages(saved.outbox, *out.link, type));
    ASSIGN_OR_RETURN(auto unacknowledged, restored_messages(saved.unacknowledged, *out.link, type));
    if (!saved.is_live) {
      flow.close(out);
      if (follows) notified_[{out.actor, out.link->target}] = PeerEvent::Kind::kDown;
    }
    load_link(saved, out);
    if (!follows) {
      flow.put_back(out, std::move(outbox), std::move(unacknowledged));
      continue;
    }
    if (out.link->is_remote) {
      settle_as_received(out, unacknowledged, outbox);
      out.num_shipped.set(out.num_settled.get());
      out.bytes_shipped = out.bytes_settled;
    }
    flow.put_back(out, {}, {});
    for (Envelope& envelope : unacknowledged) send_again(out, std::move(envelope));
    for (Envelope& envelope : outbox) send_again(out, std::move(envelope));
  }
  return ok();
}

/// The receiver has overwritten messages after its cut and does not know which. They count as
/// overwritten here.
void GroupLinks::settle_as_received(OutLink& out, std::span<const Envelope> unacknowledged,
                                    std::span<const Envelope> outbox) {
  if (!out.link->latest_wins) return;
  const uint64_t num_open = unacknowledged.size() + outbox.size();
  uint64_t last = out.num_emitted.get();
  if (!unacknowledged.empty())
    last = unacknowledged.front().sequence - 1;
  else if (!outbox.empty())
    last = outbox.front().sequence - 1;
  const auto received = setup().step_source->num_received(out.id, last);
  if (!received) return;
  out.num_settled.set(*received);
  out.num_overwritten.set(out.num_emitted.get() - num_open - *received);
}

/// Sends a message again that was emitted before the cut and was not acknowledged.
void GroupLinks::send_again(OutLink& out, Envelope&& envelope) {
  EmissionFate fate = EmissionFate::kSend;
  if (out.link->is_remote)
    fate = setup().step_source->emission_fate(out.id, envelope.sequence, out.num_shipped.get());
  if (common_.flow->emit_again(out, envelope, fate)) ship(out, std::move(envelope));
}

/// Finds the actor and input of a saved message.
Result<Input> GroupLinks::restored_input(const SavedMessage& saved) const {
  const auto& links = setup().wiring->links;
  if (saved.link.index() >= links.size() || links[saved.link.index()].target_group != setup().group)
    return error(Code::kCorrupt,
                 "a message in the saved state of '{}' is of link {}, which ends elsewhere",
                 common_.planned().name, saved.link.value);
  const WiredLink& link = links[saved.link.index()];
  const InLink& in = inbox_.links[link.in_index];
  Input input;
  input.actor = in.actor;
  input.port = link.input;
  input.in_index = link.in_index;
  const MessageType& type = *common_.contract_of(in.actor).inputs[link.input].type;
  ASSIGN_OR_RETURN(input.envelope, restored_message(saved, link, type));
  return input;
}

}  // namespace primerl
