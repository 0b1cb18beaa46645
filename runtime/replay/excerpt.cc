#include "runtime/replay/excerpt.h"

#include <algorithm>

#include "graph/base/files.h"
#include "runtime/trace/record/gap_ledger.h"
#include "runtime/trace/record/payload_writer.h"
#include "runtime/trace/record/segment_writer.h"
#include "runtime/wire/msgpack_codec.h"
#include "runtime/wire/payload_check.h"

namespace primerl {
namespace {

constexpr uint64_t kSegmentBytes = uint64_t{4} << 20;

DeliveryFrame frame_of(const TraceStep& step) {
  DeliveryFrame frame = {};
  frame.header = frame_head(TraceFrameKind::kDelivery, step.group.value);
  frame.header.flags = step.flags;
  frame.header.count = static_cast<uint16_t>(step.num_emissions);
  frame.step = step.step;
  frame.began_ns = step.began.to_nanoseconds();
  frame.instance = step.instance.value;
  frame.duration_us = static_cast<uint32_t>(step.duration.to_nanoseconds() / 1000);
  frame.step_kind = static_cast<uint8_t>(step.kind);
  frame.num_notes = step.num_notes;
  frame.subject = step.kind == StepKind::kMessage ? step.link.value : step.subject;
  frame.sequence = step.sequence;
  frame.incarnation = step.incarnation;
  frame.tenant = step.tenant.value;
  frame.type = step.type;
  frame.cause_instance = step.cause.instance.value;
  frame.cause_step = step.cause.step;
  frame.sender_step = step.sender_step;
  frame.payload_check = step.payload_check;
  frame.payload_bytes = step.payload_bytes;
  frame.origin = step.origin.value;
  return frame;
}

PayloadFrame frame_of(const StoredPayload& stored) {
  PayloadFrame frame = {};
  frame.header = frame_head(TraceFrameKind::kPayload, stored.sender_group.value);
  frame.step = stored.step;
  frame.link = stored.key.link.value;
  frame.incarnation = stored.key.incarnation;
  frame.sequence = stored.key.sequence;
  frame.sent_at_ns = stored.sent_at.to_nanoseconds();
  frame.tenant = stored.tenant.value;
  frame.type = stored.type;
  frame.cause_instance = stored.cause.instance.value;
  frame.origin = stored.origin.value;
  frame.cause_step = stored.cause.step;
  frame.payload_check = stored.payload_check;
  return frame;
}

/// The writer's fault when it refused a frame.
Status written(const SegmentWriter& writer, bool is_written) {
  if (is_written) return ok();
  RETURN_IF_ERROR(writer.fault());
  return error(Code::kUnavailable, "a record of the excerpt could not be written");
}

Status append(SegmentWriter& writer, const StoredPayload& stored) {
  PayloadFrame frame = frame_of(stored);
  std::vector<std::byte> scratch;
  return written(writer, append_payload(writer, frame, stored.body, stored.blobs, scratch));
}

}  // namespace

ExcerptCollector::ExcerptCollector(const Trace& trace, const Wiring& wiring, GroupId group,
                                   uint64_t last_step)
    : trace_(trace), wiring_(wiring), group_(group), last_step_(last_step) {}

void ExcerptCollector::on_step(const StepRecord& record) {
  const std::lock_guard lock(mutex_);
  for (const BatchedMessage& emission : record.emissions) {
    const WiredLink& link = wiring_.links[emission.link.index()];
    const Envelope& envelope = emission.envelope;
    const MessageKey key{emission.link, envelope.incarnation, envelope.sequence};
    if (record.group == group_) {
      auto& newest = sent_[{key.link, key.incarnation}];
      newest = std::max(newest, key.sequence);
      continue;
    }
    if (link.target_group != group_) continue;
    const auto delivered = trace_.delivery(key);
    if (!delivered || delivered->step > last_step_) continue;
    auto encoded = encode_message(envelope.payload);
    if (!encoded.ok()) continue;  // too large for a message: write() reports it as missing
    StoredPayload& stored = inputs_[key];
    stored.key = key;
    stored.sender_group = record.group;
    stored.step = record.step;
    stored.sent_at = envelope.sent_at;
    stored.tenant = envelope.tenant;
    stored.origin = envelope.origin;
    stored.cause = envelope.cause;
    stored.type = trace_.catalog().links[key.link.index()].type;
    stored.payload_check = payload_check(envelope.payload);
    stored.body = std::move(encoded->body);
    stored.blobs = std::move(encoded->blobs);
  }
}

TraceCatalog ExcerptCollector::excerpt_catalog(Places places) const {
  TraceCatalog catalog = trace_.catalog();
  catalog.graph_text = std::move(places.graph_text);
  catalog.resumed_from = std::move(places.resumed_from);
  catalog.recovers.clear();  // the record that its start followed is not part of the excerpt
  for (auto& link : catalog.links) {
    const bool is_input = catalog.instances[link.target].group == group_.value &&
                          catalog.instances[link.sender].group != group_.value;
    if (is_input) link.record = "payload";
  }
  return catalog;
}

Status ExcerptCollector::write_input(SegmentWriter& writer, const TraceStep& step) const {
  const WiredLink& link = wiring_.links[step.link.index()];
  if (link.sender_group == group_) return ok();  // the group sends it itself
  const MessageKey key{step.link, step.incarnation, step.sequence};
  if (auto stored = trace_.payload(key); stored.ok()) {
    if (stored->sender_group.is_none()) {  // it was stored with this step
      stored->sender_group = group_;
      stored->step = step.step;
    }
    return append(writer, *stored);
  }
  const std::lock_guard lock(mutex_);
  if (const auto found = inputs_.find(key); found != inputs_.end())
    return append(writer, found->second);
  return error(Code::kNotFound,
               "the input of step {}, message {} of '{}', is neither stored nor sent in the replay",
               step.step, step.sequence, trace_.catalog().links[step.link.index()].edge)
      .note("set record = \"payload\" on its edge and run again");
}

Status ExcerptCollector::write_step(SegmentWriter& writer, const TraceStep& step) const {
  if (step.kind == StepKind::kMessage) RETURN_IF_ERROR(write_input(writer, step));
  for (const NondeterministicInput& note : trace_.notes(group_, step.step)) {
    NoteFrame frame = {};
    frame.header = frame_head(TraceFrameKind::kNote, group_.value);
    frame.header.count = static_cast<uint16_t>(note.kind);
    frame.step = step.step;
    frame.instance = note.instance.value;
    frame.num_bytes = static_cast<uint32_t>(note.bytes.size());
    RETURN_IF_ERROR(written(writer, writer.append(bytes_of(frame), note.bytes)));
  }
  // The expected emissions of the last step, so that a difference can be shown field by field.
  if (step.step == last_step_)
    for (const MessageKey& key : trace_.stored_emissions(group_, last_step_)) {
      const auto stored = trace_.payload(key);
      if (stored.ok()) RETURN_IF_ERROR(append(writer, *stored));
    }
  DeliveryFrame frame = frame_of(step);
  if (step.kind == StepKind::kMessage) frame.header.flags |= kPayloadStored;
  return written(writer, writer.append(bytes_of(frame)));
}

std::set<std::pair<GroupId, uint64_t>> ExcerptCollector::deliveries_of_emissions() const {
  std::set<std::pair<GroupId, uint64_t>> deliveries;
  const uint64_t num_more = trace_.step(group_, last_step_).value_or(TraceStep()).num_emissions;
  const std::lock_guard lock(mutex_);
  for (const auto& [link, newest] : sent_)
    for (uint64_t sequence = 1; sequence <= newest + num_more; ++sequence) {
      const auto delivered = trace_.delivery({link.first, link.second, sequence});
      const GroupId target = wiring_.links[link.first.index()].target_group;
      if (delivered && (target != group_ || delivered->step > last_step_))
        deliveries.insert({target, delivered->step});
    }
  return deliveries;
}

Status ExcerptCollector::write(const std::filesystem::path& folder, Places places) const {
  const TraceCatalog catalog = excerpt_catalog(std::move(places));
  SegmentWriterOptions options;
  options.folder = folder;
  options.process = "excerpt";
  options.run_id = catalog.run_id;
  options.catalog = catalog.to_json().dump();
  options.segment_bytes = kSegmentBytes;
  ASSIGN_OR_RETURN(const auto writer, SegmentWriter::open(std::move(options)));
  LifecycleFrame start = {};
  start.header = frame_head(TraceFrameKind::kLifecycle, group_.value);
  start.header.count = static_cast<uint16_t>(LifecycleKind::kGroupStarted);
  start.at_ns = trace_.started(group_).value_or(Time()).to_nanoseconds();
  RETURN_IF_ERROR(written(*writer, writer->append(bytes_of(start))));
  for (uint64_t number = 1; number <= last_step_; ++number) {
    const auto step = trace_.step(group_, number);
    if (!step)
      return error(Code::kNotFound, "step {} of '{}' is not in the record", number,
                   catalog.groups[group_.index()].name);
    RETURN_IF_ERROR(write_step(*writer, *step));
  }
  for (const auto& [target, number] : deliveries_of_emissions()) {
    const auto step = trace_.step(target, number);
    if (!step) continue;
    DeliveryFrame frame = frame_of(*step);
    // Notes and content of this delivery are not part of the excerpt.
    frame.header.flags &= static_cast<uint8_t>(~(kHasNotes | kPayloadStored));
    RETURN_IF_ERROR(written(*writer, writer->append(bytes_of(frame))));
  }
  RETURN_IF_ERROR(writer->close());
  const Json facts = Json::object().set("group", group_.value).set("last_step", last_step_);
  return system_files().write_file(folder / kExcerptFile, facts.dump() + "\n");
}

}  // namespace primerl
