#include "runtime/exec/group_state.h"

#include <algorithm>

#include "runtime/exec/group_body.h"
#include "runtime/wire/msgpack_codec.h"

namespace primerl {
namespace {

/// `message`: the object that `write` writes, if its Blobs may share it.
template <class Write>
SavedFields written(const Write& write, std::shared_ptr<const void> message = nullptr) {
  MsgpackWriter writer;
  writer.share(std::move(message));
  write(writer);
  SavedFields saved;
  saved.body = Blob(writer.take_body());
  saved.blobs = writer.take_blobs();
  return saved;
}

Result<Envelope> restored_message(const SavedMessage& saved, const WiredLink& link,
                                  const MessageType& type) {
  Envelope envelope;
  envelope.edge = link.edge;
  envelope.sender = link.sender;
  envelope.target = link.target;
  envelope.tenant = saved.tenant;
  envelope.origin = saved.origin;
  envelope.incarnation = saved.incarnation;
  envelope.sequence = saved.sequence;
  envelope.sender_step = saved.sender_step;
  envelope.cause = saved.cause;
  envelope.sent_at = saved.sent_at;
  envelope.blob_bytes = saved.blob_bytes;
  ASSIGN_OR_RETURN(envelope.payload,
                   decode_message(type, saved.payload.body.bytes(), saved.payload.blobs));
  return envelope;
}

Result<std::vector<Envelope>> restored_messages(const std::vector<SavedMessage>& saved,
                                                const WiredLink& link, const MessageType& type) {
  std::vector<Envelope> messages;
  for (const SavedMessage& each : saved) {
    ASSIGN_OR_RETURN(Envelope envelope, restored_message(each, link, type));
    messages.push_back(std::move(envelope));
  }
  return messages;
}

SavedInput saved_input(const Input& input, std::span<const InLink> links) {
  SavedInput saved;
  saved.kind = static_cast<uint8_t>(input.kind);
  saved.actor = input.actor;
  saved.arrival = input.arrival;
  saved.arrived = input.arrived;
  switch (input.kind) {
    case StepKind::kMessage:
      saved.message = saved_message(links[input.in_index].id, input.envelope);
      break;
    case StepKind::kCommand:
      saved.timer = input.port;
      saved.generation = input.number;
      saved.message = saved_message(LinkId::none(), input.envelope);
      break;
    case StepKind::kTimer:
      saved.timer = input.port;
      saved.generation = input.generation;
      break;
    case StepKind::kPeer:
      saved.peer_is_up = input.peer.kind == PeerEvent::Kind::kUp;
      saved.peer = input.peer.instance;
      saved.peer_incarnation = input.peer.incarnation;
      break;
    case StepKind::kWork:
    case StepKind::kDrain:
      break;
  }
  return saved;
}

/// Visits the pairs (counter here, saved counter) of one side of a link; one list for saving and
/// restoring.
template <class Link, class Saved, class Visit>
void visit_counters_in(Link& in, Saved& saved, const Visit& visit) {
  visit(in.num_received, saved.num_received);
  visit(in.num_handled, saved.num_handled);
  visit(in.num_failed, saved.num_failed);
  visit(in.num_overwritten, saved.num_overwritten);
  visit(in.num_refused_duplicates, saved.num_refused_duplicates);
  visit(in.num_refused_incarnations, saved.num_refused_incarnations);
  visit(in.waiting_max, saved.waiting_max);
  visit(in.sent_by_dead, saved.sent_by_dead);
}

template <class Link, class Saved, class Visit>
void visit_counters_out(Link& out, Saved& saved, const Visit& visit) {
  visit(out.num_emitted, saved.num_emitted);
  visit(out.num_shipped, saved.num_shipped);
  visit(out.num_settled, saved.num_settled);
  visit(out.num_overwritten, saved.num_overwritten);
  visit(out.past_sent, saved.past_sent);
  visit(out.past_handled, saved.past_handled);
  visit(out.past_dropped, saved.past_dropped);
  visit(out.num_returned, saved.num_returned);
  visit(out.waiting_max, saved.waiting_max);
  visit(out.full_since_ns, saved.full_since_ns);
  visit(out.blocked_ns, saved.blocked_ns);
}

void save(const Counter& counter, uint64_t& saved) { saved = counter.get(); }
void load(Counter& counter, const uint64_t& saved) { counter.set(saved); }

SavedInLink saved_link(const InLink& in) {
  SavedInLink saved;
  saved.incarnation = in.incarnation;
  saved.last_sequence = in.last_sequence;
  saved.last_sender_step = in.last_sender_step;
  saved.num_received_incarnation = in.num_received_incarnation;
  saved.settled_messages = in.settled_messages;
  saved.settled_bytes = in.settled_bytes;
  saved.granted_messages = in.granted_messages;
  saved.granted_bytes = in.granted_bytes;
  saved.excess = in.excess;
  saved.is_ungranted = in.is_ungranted;
  saved.is_paused = in.is_paused.get() != 0;
  visit_counters_in(in, saved, save);
  return saved;
}

void load_link(const SavedInLink& saved, InLink& in) {
  in.incarnation = saved.incarnation;
  in.last_sequence = saved.last_sequence;
  in.last_sender_step = saved.last_sender_step;
  in.num_received_incarnation = saved.num_received_incarnation;
  in.settled_messages = saved.settled_messages;
  in.settled_bytes = saved.settled_bytes;
  in.granted_messages = saved.granted_messages;
  in.granted_bytes = saved.granted_bytes;
  in.excess = saved.excess;
  in.is_ungranted = saved.is_ungranted;
  visit_counters_in(in, saved, load);
}

SavedOutLink saved_link(const OutLink& out) {
  SavedOutLink saved;
  saved.is_live = out.is_live;
  visit_counters_out(out, saved, save);
  saved.last_settled_sequence = out.last_settled_sequence;
  saved.bytes_emitted = out.bytes_emitted;
  saved.bytes_shipped = out.bytes_shipped;
  saved.bytes_settled = out.bytes_settled;
  for (uint64_t at = out.outbox.head(); at != out.outbox.tail(); ++at)
    saved.outbox.push_back(saved_message(out.id, out.outbox.at(at)));
  for (uint64_t at = out.unacknowledged.head(); at != out.unacknowledged.tail(); ++at)
    saved.unacknowledged.push_back(saved_message(out.id, out.unacknowledged.at(at)));
  return saved;
}

}  // namespace

SavedMessage saved_message(LinkId link, const Envelope& envelope) {
  SavedMessage saved;
  saved.link = link;
  saved.tenant = envelope.tenant;
  saved.origin = envelope.origin;
  saved.incarnation = envelope.incarnation;
  saved.sequence = envelope.sequence;
  saved.sender_step = envelope.sender_step;
  saved.cause = envelope.cause;
  saved.sent_at = envelope.sent_at;
  saved.blob_bytes = envelope.blob_bytes;
  saved.payload = written(
      [&](FieldWriter& out) { envelope.payload.type->write(out, envelope.payload.message.get()); },
      envelope.payload.message);
  return saved;
}

SavedFields save_actor(const Contract& contract, const Actor& actor) {
  if (contract.state.write == nullptr) return {};
  return written([&](FieldWriter& out) { contract.state.write(out, actor); });
}

Status restore_actor(const Contract& contract, const SavedFields& saved, Actor& actor) {
  if (contract.state.read == nullptr) {
    if (saved.body.empty()) return ok();
    return error(Code::kCorrupt, "actor '{}' has no state, and {} bytes of one were saved",
                 contract.name, saved.body.size());
  }
  MsgpackReader reader(saved.body.bytes(), saved.blobs);
  contract.state.read(reader, actor);
  const Status finished = reader.finish();
  if (finished.ok()) return ok();
  return Error(finished.error()).while_doing(fmt::format("the state of '{}'", contract.name));
}

SavedFields encode_group_state(const GroupState& state) {
  return written([&](FieldWriter& out) { wire::write(out, state); });
}

Result<GroupState> decode_group_state(const SavedFields& bytes) {
  MsgpackReader reader(bytes.body.bytes(), bytes.blobs);
  GroupState state;
  wire::read(reader, state);
  RETURN_IF_ERROR(reader.finish());
  return state;
}

GroupState ActorGroup::Body::state() const {
  CHECK(step_ == Step::kNone && touched_.empty(), "a group was saved within a step");
  GroupState state;
  state.group = setup().group;
  state.at = now_;
  state.incarnation = setup().incarnation;
  state.num_steps = num_steps_.get();
  state.num_shipped = num_shipped_.get();
  state.num_received = num_received_.get();
  state.num_restarts = num_restarts_.get();
  state.num_abandoned = num_abandoned_.get();
  state.is_draining = is_draining_;
  state.finished = finished_;
  state.failed = failed_;
  state.set_aside = set_aside_;
  state.work_armed = work_armed_;
  state.work_arrival = work_arrival_;
  for (const ActorSlot& slot : slots_) {
    const Running& running = *slot.running;
    SavedActor& saved = state.actors.emplace_back();
    saved.state = save_actor(running.contract(), running.actor());
    const auto counters = common_->counters[state.actors.size() - 1].values();
    saved.counters.insert(counters.begin(), counters.end());
    saved.timer_generations = slot.timer_generations;
    saved.restarts = slot.restarts;
    saved.has_drained = slot.has_drained;
    saved.stops_on_error = running.stops_on_error();
    saved.is_draining = running.is_draining();
  }
  for (const InLink& in : inbox_.links) state.in_links.push_back(saved_link(in));
  for (const OutLink& out : common_->flow->links) state.out_links.push_back(saved_link(out));
  inbox_.visit(
      [&](const Input& input) { state.inputs.push_back(saved_input(input, inbox_.links)); });
  std::sort(state.inputs.begin(), state.inputs.end(),
            [](const SavedInput& a, const SavedInput& b) { return a.arrival < b.arrival; });
  state.last_arrival = inbox_.last_arrival();
  for (const PendingTimer& timer : timers_)
    state.timers.push_back({timer.due, timer.actor, timer.timer, timer.generation});
  for (const OpenBatch& open : batches_)
    state.peers.push_back({open.batch.to, open.peer_incarnation});
  for (const auto& resource : common_->owned) state.resources.push_back(resource->save_state());
  return state;
}

void ActorGroup::Body::cut(uint64_t number, Time now) {
  if (setup().cuts == nullptr || number <= cut_) return;
  set_now(now);
  flush();  // under the old cut number
  cut_ = number;
  setup().cuts->add_part(number, state());
}

Status ActorGroup::Body::start_from(const GroupState& state,
                                    std::span<const SavedMessage> in_transit, Time now) {
  RETURN_IF_ERROR(start(now, &state));
  RETURN_IF_ERROR(restore(state, now));
  for (const SavedMessage& saved : in_transit) {
    ASSIGN_OR_RETURN(Input input, restored_input(saved));
    RETURN_IF_ERROR(inbox_.receive(input.in_index, std::move(input.envelope), now));
  }
  flush();
  update_gauge();
  return ok();
}

Status ActorGroup::Body::restore_resources(const GroupState& state) {
  if (state.resources.size() != common_->owned.size())
    return error(Code::kCorrupt, "the saved state of '{}' has {} resources, it owns {}",
                 planned_.name, state.resources.size(), common_->owned.size());
  for (size_t i = 0; i < common_->owned.size(); ++i)
    if (const Status restored = common_->owned[i]->restore_state(state.resources[i]);
        !restored.ok())
      return Error(restored.error())
          .while_doing(fmt::format("restoring a resource of '{}'", planned_.name));
  return ok();
}

Status ActorGroup::Body::restore(const GroupState& state, Time now) {
  CHECK(is_started_ && num_steps_.get() == 0 && inbox_.empty(),
        "a group is restored before its first step");
  set_now(now);
  const bool follows = setup().step_source != nullptr;
  RETURN_IF_ERROR(check_fits(state));
  RETURN_IF_ERROR(restore_actors(state));
  num_steps_.set(state.num_steps);
  num_restarts_.set(state.num_restarts);
  num_abandoned_.set(state.num_abandoned);
  // A group that follows a record counts only what it sends and receives from now on. The two ends
  // of a link were saved at different moments, and the end of a drain is found by the difference of
  // these counts.
  num_shipped_.set(follows ? 0 : state.num_shipped);
  num_received_.set(follows ? 0 : state.num_received);
  is_draining_ = state.is_draining;
  finished_ = state.finished;
  failed_ = state.failed;
  set_aside_ = state.set_aside;
  for (const TenantSlot tenant : finished_) setup().executor->tenant_finished(tenant);
  for (const auto& [tenant, why] : failed_) setup().executor->tenant_failed(tenant, why);
  work_armed_ = state.work_armed;
  work_arrival_ = state.work_arrival;
  timers_.clear();
  for (const SavedTimer& saved : state.timers)
    timers_.push_back({saved.due, saved.actor, saved.timer, saved.generation});
  for (size_t i = 0; i < batches_.size(); ++i)
    batches_[i].peer_incarnation = state.peers[i].incarnation;
  RETURN_IF_ERROR(restore_in_links(state));
  for (const SavedInput& saved : state.inputs) RETURN_IF_ERROR(put_back(saved));
  inbox_.set_last_arrival(state.last_arrival);
  RETURN_IF_ERROR(restore_out_links(state));
  (void)common_->flow->take_got_capacity();
  flush();
  update_gauge();
  return ok();
}

/// For a group that follows its record, timers and control inputs come from the record.
Status ActorGroup::Body::put_back(const SavedInput& saved) {
  const auto kind = static_cast<StepKind>(saved.kind);
  Input input;
  if (kind == StepKind::kMessage) {
    ASSIGN_OR_RETURN(input, restored_input(*saved.message));
  } else {
    input.kind = kind;
    input.actor = saved.actor;
    input.port = saved.timer;
    input.generation = saved.generation;
    if (kind == StepKind::kCommand) {
      input.number = saved.generation;
      const InputPort& port = slots_[saved.actor].running->contract().inputs[saved.timer];
      const SavedFields& payload = saved.message->payload;
      ASSIGN_OR_RETURN(input.envelope.payload,
                       decode_message(*port.type, payload.body.bytes(), payload.blobs));
    }
    input.peer = {saved.peer_is_up ? PeerEvent::Kind::kUp : PeerEvent::Kind::kDown, saved.peer,
                  saved.peer_incarnation};
  }
  input.arrival = saved.arrival;
  input.arrived = saved.arrived;
  const StepSource* source = setup().step_source;
  if (source == nullptr) {
    num_commands_ += kind == StepKind::kCommand ? 1 : 0;
    inbox_.put_back(std::move(input));
  } else if (kind == StepKind::kTimer) {
    timers_.push_back({saved.arrived, saved.actor, saved.timer, saved.generation});
  } else if (kind == StepKind::kDrain) {
    slots_[saved.actor].has_drained = false;
  } else if (kind == StepKind::kMessage) {
    InLink& in = inbox_.links[input.in_index];
    const Envelope& envelope = input.envelope;
    if (!in.link->is_remote || !source->has_input(in.id, envelope.incarnation, envelope.sequence)) {
      inbox_.put_back(std::move(input));
      return ok();
    }
    // It is counted when its recorded step handles it.
    in.num_received.set(in.num_received.get() - 1);
    if (envelope.incarnation == in.incarnation) in.num_received_incarnation -= 1;
  }
  return ok();
}

Status ActorGroup::Body::restore_actors(const GroupState& state) {
  for (size_t i = 0; i < slots_.size(); ++i) {
    ActorSlot& slot = slots_[i];
    Running& running = *slot.running;
    const SavedActor& saved = state.actors[i];
    RETURN_IF_ERROR(restore_actor(running.contract(), saved.state, running.actor()));
    common_->counters[i].restore(saved.counters);
    running.go_on(saved.stops_on_error, saved.is_draining);
    slot.timer_generations = saved.timer_generations;
    slot.restarts = saved.restarts;
    slot.has_drained = saved.has_drained;
    take_snapshot(slot);
  }
  return ok();
}

Status ActorGroup::Body::restore_in_links(const GroupState& state) {
  const bool follows = setup().step_source != nullptr;
  for (uint32_t i = 0; i < inbox_.links.size(); ++i) {
    InLink& in = inbox_.links[i];
    load_link(state.in_links[i], in);
    inbox_.pause(in.actor, in.link->input, state.in_links[i].is_paused);
    if (follows) {
      // Grants may have been lost in transit, so all credit is granted again.
      in.is_ungranted = false;
      in.granted_messages = in.granted_bytes = 0;
    } else if (in.is_ungranted && in_peer_[i] != Inbox::kNone) {
      batches_[in_peer_[i]].ungranted.push_back(i);
    }
  }
  return ok();
}

Status ActorGroup::Body::restore_out_links(const GroupState& state) {
  const bool follows = setup().step_source != nullptr;
  Flow& flow = *common_->flow;
  for (uint32_t i = 0; i < flow.links.size(); ++i) {
    OutLink& out = flow.links[i];
    const SavedOutLink& saved = state.out_links[i];
    const MessageType& type = *slots_[out.actor].running->contract().outputs[out.link->output].type;
    ASSIGN_OR_RETURN(auto outbox, restored_messages(saved.outbox, *out.link, type));
    ASSIGN_OR_RETURN(auto unacknowledged, restored_messages(saved.unacknowledged, *out.link, type));
    if (!saved.is_live) {
      flow.close(out);
      if (follows) told_[{out.actor, out.link->target}] = PeerEvent::Kind::kDown;
    }
    visit_counters_out(out, saved, load);
    out.last_settled_sequence = saved.last_settled_sequence;
    out.bytes_emitted = saved.bytes_emitted;
    out.bytes_shipped = saved.bytes_shipped;
    out.bytes_settled = saved.bytes_settled;
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
void ActorGroup::Body::settle_as_received(OutLink& out, std::span<const Envelope> unacknowledged,
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
void ActorGroup::Body::send_again(OutLink& out, Envelope&& envelope) {
  EmissionFate fate = EmissionFate::kSend;
  if (out.link->is_remote)
    fate = setup().step_source->emission_fate(out.id, envelope.sequence, out.num_shipped.get());
  if (common_->flow->emit_again(out, envelope, fate)) ship(out, std::move(envelope));
}

/// Finds the actor and input of a saved message.
Result<Input> ActorGroup::Body::restored_input(const SavedMessage& saved) const {
  const auto& links = setup().wiring->links;
  if (saved.link.index() >= links.size() || links[saved.link.index()].target_group != setup().group)
    return error(Code::kCorrupt,
                 "a message in the saved state of '{}' is of link {}, which ends elsewhere",
                 planned_.name, saved.link.value);
  const WiredLink& link = links[saved.link.index()];
  const InLink& in = inbox_.links[link.in_index];
  Input input;
  input.actor = in.actor;
  input.port = link.input;
  input.in_index = link.in_index;
  const MessageType& type = *slots_[in.actor].running->contract().inputs[link.input].type;
  ASSIGN_OR_RETURN(input.envelope, restored_message(saved, link, type));
  return input;
}

}  // namespace primerl
