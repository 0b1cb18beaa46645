#include "runtime/trace/read/stored_message.h"

#include <algorithm>

#include "runtime/wire/msgpack_codec.h"
#include "runtime/wire/payload_check.h"

namespace primerl {

Result<Envelope> stored_envelope(const Trace& trace, const Plan& plan, const WiredLink& link,
                                 const TraceStep& step) {
  ASSIGN_OR_RETURN(const StoredPayload stored,
                   trace.payload({step.link, step.incarnation, step.sequence}));
  const MessageType& type = *plan.contract_of(link.sender).outputs[link.output].type;
  if (trace.catalog().types[stored.type].name != type.name)
    return error(Code::kCorrupt, "it is a '{}', not a '{}'",
                 trace.catalog().types[stored.type].name, type.name);
  ASSIGN_OR_RETURN(Payload payload, decode_message(type, stored.body, stored.blobs));
  if ((step.flags & kNotChecked) == 0 && payload_check(payload) != step.payload_check)
    return error(Code::kCorrupt, "its content does not match the check of its delivery");
  Envelope envelope;
  envelope.edge = link.edge;
  envelope.sender = link.sender;
  envelope.target = link.target;
  envelope.tenant = stored.tenant;
  envelope.incarnation = step.incarnation;
  envelope.sequence = step.sequence;
  envelope.sender_step = step.sender_step;
  envelope.cause = stored.cause;
  envelope.origin = stored.origin;
  envelope.sent_at = stored.sent_at;
  envelope.blob_bytes = type.blob_bytes(payload.message.get());
  envelope.payload = std::move(payload);
  return envelope;
}

RecordedInputs::RecordedInputs(const Plan& plan, const Wiring& wiring, const Trace& trace,
                               uint32_t incarnation, std::vector<bool> is_absent, bool is_alone,
                               const std::function<const GroupState*(GroupId)>& state_of)
    : plan_(plan),
      wiring_(wiring),
      trace_(trace),
      incarnation_(incarnation),
      is_absent_(std::move(is_absent)),
      is_alone_(is_alone),
      last_handled_(wiring.links.size(), 0),
      last_received_(wiring.links.size(), 0),
      handled_(wiring.links.size()),
      num_received_(wiring.links.size(), 0) {
  if (!is_alone_) return;
  for (uint32_t i = 0; i < plan.groups.size(); ++i) {
    const GroupId group(i);
    if (is_absent_[i]) continue;
    const GroupState* state = state_of ? state_of(group) : nullptr;
    uint64_t first = trace.first_step(group);
    if (state != nullptr) {
      first = std::max(first, state->num_steps + 1);
      for (uint32_t k = 0; k < state->in_links.size(); ++k)
        if (const SavedInLink& in = state->in_links[k]; in.incarnation == incarnation_) {
          const size_t link = wiring.groups[i].in[k].index();
          last_received_[link] = in.last_sequence;
          num_received_[link] = in.num_received_incarnation;
        }
    }
    for (uint64_t number = first; number <= trace.last_step(group); ++number) {
      const auto step = trace.step(group, number);
      if (!step || step->kind != StepKind::kMessage || step->incarnation != incarnation_) continue;
      const WiredLink& link = wiring.links[step->link.index()];
      // Messages that waited when the group was cut are already counted by the cut.
      const bool is_new = step->sequence > last_received_[step->link.index()];
      if (state != nullptr && link.is_remote && link.latest_wins && is_new)
        handled_[step->link.index()].push_back(step->sequence);
      uint64_t& last = last_handled_[step->link.index()];
      last = std::max(last, step->sequence);
    }
  }
}

std::optional<uint64_t> RecordedInputs::num_received(LinkId id, uint64_t sequence) const {
  // Messages to a process that died are not counted any more.
  if (!is_alone_ || is_absent(wiring_.links[id.index()].target_group)) return std::nullopt;
  if (sequence <= last_received_[id.index()]) return std::nullopt;
  const auto& handled = handled_[id.index()];
  const auto end = std::upper_bound(handled.begin(), handled.end(), sequence);
  return num_received_[id.index()] + static_cast<uint64_t>(end - handled.begin());
}

bool RecordedInputs::has(const MessageKey& key) const {
  const WiredLink& link = wiring_.links[key.link.index()];
  if (!link.is_remote || !trace_.delivery(key)) return false;
  return is_absent(link.sender_group) || (is_alone_ && trace_.has_payload(key));
}

Result<Envelope> RecordedInputs::of(const TraceStep& step) const {
  return stored_envelope(trace_, plan_, wiring_.links[step.link.index()], step);
}

EmissionFate RecordedInputs::emission_fate(LinkId id, uint64_t sequence,
                                           uint64_t num_shipped) const {
  const WiredLink& link = wiring_.links[id.index()];
  if (is_absent(link.target_group)) return EmissionFate::kHandled;
  // Which messages were overwritten before they left does not matter, only their number.
  if (sequence <= last_received_[id.index()])
    return num_shipped < num_received_[id.index()] ? EmissionFate::kReceived
                                                   : EmissionFate::kOverwritten;
  if (!is_alone_) return EmissionFate::kSend;
  if (sequence > last_handled_[id.index()]) return EmissionFate::kSendLater;
  const MessageKey key{id, incarnation_, sequence};
  if (!trace_.delivery(key))
    return link.latest_wins ? EmissionFate::kOverwritten : EmissionFate::kSend;
  return trace_.has_payload(key) ? EmissionFate::kHandled : EmissionFate::kSend;
}

}  // namespace primerl
