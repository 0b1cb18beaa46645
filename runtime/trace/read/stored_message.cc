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
  envelope.cause = stored.cause;
  envelope.origin = stored.origin;
  envelope.sent_at = stored.sent_at;
  envelope.blob_bytes = type.blob_bytes(payload.message.get());
  envelope.payload = std::move(payload);
  return envelope;
}

RecordedInputs::RecordedInputs(const Plan& plan, const Wiring& wiring, const Trace& trace,
                               uint32_t incarnation, std::vector<bool> is_absent, bool is_alone)
    : plan_(plan),
      wiring_(wiring),
      trace_(trace),
      incarnation_(incarnation),
      is_absent_(std::move(is_absent)),
      is_alone_(is_alone),
      last_handled_(wiring.links.size(), 0) {
  if (!is_alone_) return;
  for (uint32_t i = 0; i < plan.groups.size(); ++i) {
    const GroupId group(i);
    if (is_absent_[i]) continue;
    for (uint64_t number = trace.first_step(group); number <= trace.last_step(group); ++number) {
      const auto step = trace.step(group, number);
      if (!step || step->kind != StepKind::kMessage || step->incarnation != incarnation_) continue;
      uint64_t& last = last_handled_[step->link.index()];
      last = std::max(last, step->sequence);
    }
  }
}

bool RecordedInputs::has(const TraceStep& step) const {
  if (step.kind != StepKind::kMessage) return false;
  const WiredLink& link = wiring_.links[step.link.index()];
  if (!link.is_remote) return false;
  return is_absent(link.sender_group) ||
         (is_alone_ && trace_.has_payload({step.link, step.incarnation, step.sequence}));
}

Result<Envelope> RecordedInputs::of(const TraceStep& step) const {
  return stored_envelope(trace_, plan_, wiring_.links[step.link.index()], step);
}

EmissionFate RecordedInputs::emission_fate(LinkId id, uint64_t sequence) const {
  const WiredLink& link = wiring_.links[id.index()];
  if (is_absent(link.target_group)) return EmissionFate::kHandled;
  if (!is_alone_ || sequence > last_handled_[id.index()]) return EmissionFate::kSend;
  const MessageKey key{id, incarnation_, sequence};
  if (!trace_.delivery(key))
    return link.latest_wins ? EmissionFate::kOverwritten : EmissionFate::kSend;
  return trace_.has_payload(key) ? EmissionFate::kHandled : EmissionFate::kSend;
}

}  // namespace primerl
