#include "runtime/trace/record/recorder.h"

#include <algorithm>
#include <cstring>

#include "runtime/trace/command_note.h"
#include "runtime/trace/record/gap_ledger.h"
#include "runtime/trace/record/payload_writer.h"
#include "runtime/trace/tenant_note.h"
#include "runtime/wire/frame.h"
#include "runtime/wire/msgpack_codec.h"
#include "runtime/wire/payload_check.h"

namespace primerl {
namespace {

uint32_t saturated32(uint64_t value) {
  return static_cast<uint32_t>(std::min<uint64_t>(value, UINT32_MAX));
}

constexpr uint64_t kInputBlobsMax = uint64_t{64} << 10;

}  // namespace

Recorder::Recorder(const TraceCatalog& catalog, SegmentWriter& writer)
    : writer_(writer), scratch_(catalog.groups.size()) {
  for (const auto& link : catalog.links) {
    const RecordPolicy policy = link.record == "none"      ? RecordPolicy::kNone
                                : link.record == "input"   ? RecordPolicy::kInput
                                : link.record == "payload" ? RecordPolicy::kPayload
                                                           : RecordPolicy::kHeader;
    const auto process_of = [&](uint32_t instance) {
      return catalog.groups[catalog.instances[instance].group].process;
    };
    links_.push_back({policy, link.type, process_of(link.sender) != process_of(link.target)});
  }
}

Recorder::~Recorder() = default;

bool Recorder::wants_emissions(LinkId link) const {
  return links_[link.index()].is_stored_at_birth();
}

void Recorder::on_start(GroupId group, Time now) {
  LifecycleFrame frame = {};
  frame.header = frame_head(TraceFrameKind::kLifecycle, group.value);
  frame.header.count = static_cast<uint16_t>(LifecycleKind::kGroupStarted);
  frame.at_ns = now.to_nanoseconds();
  (void)writer_.append(bytes_of(frame));
}

void Recorder::on_step(const StepRecord& record) {
  DeliveryFrame frame = {};
  frame.header = frame_head(TraceFrameKind::kDelivery, record.group.value);
  uint8_t flags = 0;
  if (record.error != nullptr) flags |= kFailed;
  if (record.is_abandoned) flags |= kAbandoned;
  if (record.is_injected) flags |= kInjected;
  if (record.has_given_up) flags |= kGivenUp;
  const uint64_t num_notes = write_notes(record);
  if (num_notes > 0) flags |= kHasNotes;
  frame.num_notes = static_cast<uint8_t>(std::min<uint64_t>(num_notes, UINT8_MAX));
  for (const BatchedMessage& emission : record.emissions)
    if (links_[emission.link.index()].is_stored_at_birth())
      write_payload(record, emission.link, emission.envelope);
  if (keeps_input(record) && write_payload(record, record.link, *record.message))
    flags |= kPayloadStored;
  frame.header.count = static_cast<uint16_t>(std::min<uint32_t>(record.num_emissions, UINT16_MAX));
  frame.step = record.step;
  frame.began_ns = record.began.to_nanoseconds();
  frame.instance = record.instance.value;
  frame.duration_us = saturated32(
      static_cast<uint64_t>(std::max<int64_t>(0, (record.ended - record.began).to_nanoseconds())) /
      1000);
  frame.step_kind = static_cast<uint8_t>(record.kind);
  frame.tenant = TenantSlot::kNone;
  frame.type = UINT32_MAX;
  frame.cause_instance = frame.origin = InstanceId::kNone;
  if (record.kind == StepKind::kMessage) {
    const Envelope& message = *record.message;
    const LinkFacts& link = links_[record.link.index()];
    frame.subject = record.link.value;
    frame.sequence = message.sequence;
    frame.incarnation = message.incarnation;
    frame.tenant = message.tenant.value;
    frame.type = link.type;
    frame.cause_instance = message.cause.instance.value;
    frame.cause_step = message.cause.step;
    frame.sender_step = message.sender_step;
    frame.origin = message.origin.value;
    if (link.policy == RecordPolicy::kPayload) flags |= kPayloadStored;
    if (link.policy == RecordPolicy::kNone) {
      flags |= kNotChecked;
    } else {
      PayloadCheck check(message.payload.type->schema_hash);
      message.payload.type->write(check, message.payload.message.get());
      frame.payload_check = check.value();
      frame.payload_bytes = saturated32(check.num_bytes());
    }
  } else if (record.kind == StepKind::kTimer) {
    frame.subject = record.timer;
  } else if (record.kind == StepKind::kPeer) {
    frame.subject = record.peer.instance.value;
    frame.sequence = static_cast<uint64_t>(record.peer.kind);
    frame.incarnation = record.peer.incarnation;
  } else if (record.kind == StepKind::kCommand) {
    frame.subject = record.input;
    PayloadCheck check(record.command->type->schema_hash);
    record.command->type->write(check, record.command->message.get());
    frame.payload_check = check.value();
    frame.payload_bytes = saturated32(check.num_bytes());
  } else if (record.kind == StepKind::kTenant) {
    const TenantChange& change = *record.tenant_change;
    frame.subject = static_cast<uint32_t>(change.kind);
    frame.sequence = change.tenancy;
    frame.tenant = change.slot.value;
    const TenantCheck check = tenant_check(change);
    frame.payload_check = check.value;
    frame.payload_bytes = saturated32(check.num_bytes);
  }
  frame.header.flags = flags;
  (void)writer_.append(bytes_of(frame));
}

/// Whether this step stores its input: with record = "input"; or with "payload", if the message
/// comes from another process or from an older record, because then its sender is not in this run.
bool Recorder::keeps_input(const StepRecord& record) const {
  if (record.kind != StepKind::kMessage) return false;
  const RecordPolicy policy = links_[record.link.index()].policy;
  if (policy == RecordPolicy::kPayload)
    return record.is_from_record || links_[record.link.index()].is_remote;
  return policy == RecordPolicy::kInput && record.message->blob_bytes <= kInputBlobsMax;
}

uint64_t Recorder::write_notes(const StepRecord& record) {
  uint64_t count = 0;
  const auto note = [&](NoteKind kind, std::span<const std::byte> bytes) {
    write_note(record, kind, bytes);
    ++count;
  };
  if (record.command != nullptr) {
    if (const auto bytes = write_command_note(*record.command); bytes.ok())
      note(NoteKind::kCommand, *bytes);
    else
      scratch_[record.group.index()].num_unstored += 1;
  }
  if (record.tenant_change != nullptr) {
    if (const auto bytes = write_tenant_note(*record.tenant_change); bytes.ok())
      note(NoteKind::kTenant, *bytes);
    else
      scratch_[record.group.index()].num_unstored += 1;
  }
  if (!record.room_answers.empty()) note(NoteKind::kRoom, std::as_bytes(record.room_answers));
  if (record.stopped_at_progress != 0)
    note(NoteKind::kStop, std::as_bytes(std::span(&record.stopped_at_progress, 1)));
  if (record.error != nullptr) {
    const std::string text = static_cast<char>(record.error->code()) + record.error->text();
    note(NoteKind::kError,
         std::as_bytes(std::span(text)).first(std::min(text.size(), kInlineBytesMax)));
  }
  auto& answers = scratch_[record.group.index()].answers;
  for (const auto& answer : answers) note(NoteKind::kResource, answer);
  answers.clear();
  for (const auto& resume : record.engine_resumes) note(NoteKind::kEngineResume, resume);
  return count;
}

void Recorder::write_note(const StepRecord& record, NoteKind kind,
                          std::span<const std::byte> bytes) {
  NoteFrame frame = {};
  frame.header = frame_head(TraceFrameKind::kNote, record.group.value);
  frame.header.count = static_cast<uint16_t>(kind);
  frame.step = record.step;
  frame.instance = record.instance.value;
  frame.num_bytes = static_cast<uint32_t>(bytes.size());
  (void)writer_.append(bytes_of(frame), bytes);
}

bool Recorder::write_payload(const StepRecord& record, LinkId link, const Envelope& envelope) {
  GroupScratch& scratch = scratch_[record.group.index()];
  auto encoded = encode_message(envelope.payload);
  if (!encoded.ok() || encoded->blobs.size() > kFrameCountMax - kFrameCountMin) {
    scratch.num_unstored += 1;
    return false;
  }
  PayloadFrame frame = {};
  frame.header = frame_head(TraceFrameKind::kPayload, record.group.value);
  frame.step = record.step;
  frame.link = link.value;
  frame.incarnation = envelope.incarnation;
  frame.sequence = envelope.sequence;
  frame.sent_at_ns = envelope.sent_at.to_nanoseconds();
  frame.tenant = envelope.tenant.value;
  frame.type = links_[link.index()].type;
  frame.cause_instance = envelope.cause.instance.value;
  frame.origin = envelope.origin.value;
  frame.cause_step = envelope.cause.step;
  frame.payload_check = payload_check(envelope.payload);
  return append_payload(writer_, frame, encoded->body, encoded->blobs, scratch.bytes);
}

void Recorder::add_answer(GroupId group, std::vector<std::byte> answer) {
  scratch_[group.index()].answers.push_back(std::move(answer));
}

uint64_t Recorder::num_unstored() const {
  uint64_t sum = 0;
  for (const auto& scratch : scratch_) sum += scratch.num_unstored;
  return sum;
}

}  // namespace primerl
