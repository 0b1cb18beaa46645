#include "tests/query/conversation.h"

#include <cstring>

#include <gtest/gtest.h>

#include "actors/messages/generation.h"
#include "actors/messages/rollout.h"
#include "runtime/wire/msgpack_codec.h"
#include "runtime/wire/payload_check.h"

namespace primerl::conversation {
namespace {

template <class F>
story::StoryFrame frame_of(const F& fixed) {
  story::StoryFrame frame;
  frame.head.resize(sizeof(F));
  std::memcpy(frame.head.data(), &fixed, sizeof(F));
  return frame;
}

void append_padded(std::vector<std::byte>& out, std::span<const std::byte> part) {
  out.insert(out.end(), part.begin(), part.end());
  out.resize((out.size() + kFrameAlignment - 1) & ~(kFrameAlignment - 1));
}

template <class T>
TraceCatalog::Type type_of() {
  const MessageType& type = message_type<T>();
  return {std::string(type.name), type.version, type.schema, type.schema_hash};
}

TraceCatalog::TraceLink link(uint32_t sender, const char* output, uint32_t target,
                             const char* input, uint32_t type, bool is_feedback) {
  static constexpr const char* kNodes[] = {"env", "rollout", "router", "prefill", "decode"};
  return {fmt::format("{}.{} -> {}.{}", kNodes[sender], output, kNodes[target], input),
          sender,
          target,
          output,
          input,
          type,
          is_feedback,
          false,
          "payload"};
}

}  // namespace

Conversation::Conversation() : sequences_(9) {
  catalog = story::story_catalog();
  catalog.is_virtual = false;
  catalog.groups = {{"env", 0, {0}},
                    {"rollout.main", 0, {1}},
                    {"router", 0, {2}},
                    {"prefill", 0, {3}},
                    {"decode", 0, {4}}};
  catalog.instances = {{"env", "env", "env", 0, UINT32_MAX, {}},
                       {"rollout.main", "rollout", "rollout", 1, 0, {}},
                       {"router", "router", "router", 2, UINT32_MAX, {}},
                       {"prefill", "prefill", "prefill", 3, UINT32_MAX, {}},
                       {"decode", "decode", "decode", 4, UINT32_MAX, {}}};
  catalog.types = {type_of<GenerateRequest>(), type_of<PrefillDone>(), type_of<Completion>(),
                   type_of<Abort>(),           type_of<Action>(),      type_of<Observation>()};
  catalog.links = {link(kRollout, "generate", kRouter, "generate", 0, false),
                   link(kRouter, "prefill", kPrefill, "request", 0, false),
                   link(kPrefill, "done", kDecode, "request", 1, false),
                   link(kDecode, "completion", kRollout, "completion", 2, true),
                   link(kPrefill, "refused", kRollout, "completion", 2, true),
                   link(kRouter, "refused", kRollout, "completion", 2, true),
                   link(kRouter, "abort", kDecode, "abort", 3, true),
                   link(kRollout, "action", kEnv, "action", 4, true),
                   link(kEnv, "observation", kRollout, "observation", 5, true)};
  // As a run in one process stores them.
  is_stored_ = {false, false, true, true, true, false, false, false, false};
}

void Conversation::store(uint32_t link, bool is_stored) { is_stored_[link] = is_stored; }

Sent Conversation::send(uint32_t link, const Payload& payload, StepRef cause) {
  const uint32_t group = catalog.links[link].sender;
  Sent sent;
  sent.link = link;
  sent.sequence = ++sequences_[link];
  sent.check = payload_check(payload);
  sent.sender_step = steps_[group] + 1;
  sent.cause = cause.is_none() ? StepRef{InstanceId(group), sent.sender_step} : cause;
  const auto encoded = encode_message(payload);
  sent.num_bytes = static_cast<uint32_t>(encoded->body.size());
  if (!is_stored_[link]) return sent;
  PayloadFrame frame{};
  frame.header.kind = static_cast<uint8_t>(TraceFrameKind::kPayload);
  frame.header.group = group;
  frame.header.count = static_cast<uint16_t>(encoded->blobs.size());
  frame.step = sent.sender_step;
  frame.link = link;
  frame.incarnation = 1;
  frame.sequence = sent.sequence;
  frame.type = catalog.links[link].type;
  frame.cause_instance = sent.cause.instance.value;
  frame.cause_step = sent.cause.step;
  frame.origin = kRollout;
  frame.payload_check = sent.check;
  frame.body_bytes = sent.num_bytes;
  auto made = frame_of(frame);
  append_padded(made.tail, encoded->body);
  for (const Blob& blob : encoded->blobs) {
    const uint64_t size = blob.size();
    append_padded(made.tail, std::as_bytes(std::span(&size, 1)));
    append_padded(made.tail, blob.bytes());
  }
  frames_.push_back(std::move(made));
  return sent;
}

StepRef Conversation::take(const Sent& message, int64_t at_us, uint32_t duration_us) {
  return step(catalog.links[message.link].target, &message, at_us, duration_us);
}

StepRef Conversation::turn(uint32_t group, int64_t at_us, uint32_t duration_us) {
  return step(group, nullptr, at_us, duration_us);
}

StepRef Conversation::step(uint32_t group, const Sent* input, int64_t at_us, uint32_t duration_us) {
  DeliveryFrame frame{};
  frame.header.kind = static_cast<uint8_t>(TraceFrameKind::kDelivery);
  frame.header.group = group;
  frame.step = ++steps_[group];
  frame.began_ns = at_us * 1000;
  frame.instance = input == nullptr ? UINT32_MAX : group;
  frame.duration_us = duration_us;
  frame.step_kind = static_cast<uint8_t>(input == nullptr ? StepKind::kWork : StepKind::kMessage);
  frame.tenant = frame.type = frame.cause_instance = frame.origin = UINT32_MAX;
  if (input != nullptr) {
    frame.header.flags = is_stored_[input->link] ? kPayloadStored : 0;
    frame.subject = input->link;
    frame.sequence = input->sequence;
    frame.incarnation = 1;
    frame.tenant = 0;
    frame.type = catalog.links[input->link].type;
    frame.cause_instance = input->cause.instance.value;
    frame.cause_step = input->cause.step;
    frame.sender_step = input->sender_step;
    frame.payload_check = input->check;
    frame.payload_bytes = input->num_bytes;
    frame.origin = kRollout;
  }
  frames_.push_back(frame_of(frame));
  return {InstanceId(group), frame.step};
}

void Conversation::write(const std::filesystem::path& folder) const {
  for (uint32_t process = 0; process < catalog.processes.size(); ++process) {
    SegmentWriterOptions options;
    options.folder = folder / "trace";
    options.process = catalog.processes[process];
    options.process_index = process;
    options.run_id = catalog.run_id;
    options.segment_bytes = story::kStorySegmentBytes;
    options.packs = false;
    options.catalog = catalog.to_json().dump();
    auto writer = SegmentWriter::open(options);
    ASSERT_TRUE(writer.ok()) << writer.error().text();
    for (story::StoryFrame frame : frames_) {
      if (catalog.groups[frame.header().group].process != process) continue;
      ASSERT_TRUE((*writer)->append(frame.head, frame.tail));
    }
    const Status closed = (*writer)->close();
    ASSERT_TRUE(closed.ok()) << closed.error().text();
  }
}

}  // namespace primerl::conversation
