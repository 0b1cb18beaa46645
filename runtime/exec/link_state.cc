#include "runtime/exec/link_state.h"

#include <utility>

#include "runtime/wire/msgpack_codec.h"

namespace primerl {
namespace {

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

}  // namespace

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
    case StepKind::kTenant:
      saved.tenant_change = *input.tenant_change;
      saved.generation = input.drains ? 1 : 0;
      break;
    case StepKind::kWork:
    case StepKind::kDrain:
      break;
  }
  return saved;
}

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

void load_link(const SavedOutLink& saved, OutLink& out) {
  visit_counters_out(out, saved, load);
  out.last_settled_sequence = saved.last_settled_sequence;
  out.bytes_emitted = saved.bytes_emitted;
  out.bytes_shipped = saved.bytes_shipped;
  out.bytes_settled = saved.bytes_settled;
}

}  // namespace primerl
