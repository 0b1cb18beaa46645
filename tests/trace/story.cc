#include "tests/trace/story.h"

#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>

#include "graph/base/random.h"
#include "runtime/wire/msgpack_codec.h"
#include "runtime/wire/payload_check.h"

namespace primerl::story {
namespace {

template <class F>
StoryFrame frame_of(const F& fixed) {
  StoryFrame frame;
  frame.head.resize(sizeof(F));
  std::memcpy(frame.head.data(), &fixed, sizeof(F));
  return frame;
}

void append_padded(std::vector<std::byte>& out, std::span<const std::byte> part) {
  out.insert(out.end(), part.begin(), part.end());
  out.resize((out.size() + kFrameAlignment - 1) & ~(kFrameAlignment - 1));
}

/// One message in transit.
struct Sent {
  uint32_t link = 0;
  uint64_t sequence = 0;
  uint64_t check = 0;
  uint32_t num_bytes = 0;
  StepRef cause;
  uint32_t origin = 0;
};

constexpr int64_t kTick = 10'000;

class Teller {
 public:
  Teller(const StoryOptions& options, const std::function<void(StoryFrame&)>& take)
      : options_(options), take_(take), random_(options.seed) {}

  void tell() {
    for (uint32_t group = 0; group < 3; ++group) started(group);
    for (uint64_t round = 1; round <= options_.num_rounds; ++round) {
      now_ns_ += 1'000'000;
      Task task{round, "task " + std::to_string(random_.below(1000))};
      const Sent sent_task = send(kTaskLink, kEnv, task, {InstanceId(kEnv), steps_[kEnv] + 1});
      step(kEnv, StepKind::kWork, 1, nullptr);
      const Group group = group_of(task);
      const Sent sent_group =
          send(kGroupLink, kRollout, group, {InstanceId(kRollout), steps_[kRollout] + 1});
      step(kRollout, StepKind::kMessage, 1, &sent_task);
      step(kTrainer, StepKind::kMessage, 0, &sent_group);
      for (const auto& member : group.members) reward_ += member.reward;
      if (round % kBatch == 0) publish();
    }
  }

 private:
  /// Publishes a new policy, which depends on every reward so far.
  void publish() {
    const auto version = static_cast<int64_t>(steps_of_trainer_ += 1);
    const Live live{PolicyVersion(reward_ > 1e6 ? version + 1000 : version)};
    const Sent sent =
        send(kLiveConnection, kTrainer, live, {InstanceId(kTrainer), steps_[kTrainer] + 1});
    step(kTrainer, StepKind::kWork, 1, nullptr);
    step(kRollout, StepKind::kMessage, 0, &sent);
    version_ = live.version;
  }
  Group group_of(const Task& task) {
    Group group;
    group.ordinal = task.ordinal;
    group.version = version_;
    for (uint64_t i = 0; i < 2; ++i) {
      Member member{task.ordinal * 2 + i, static_cast<double>(random_.below(100)) / 100, {}};
      for (uint64_t t = 0; t < 6; ++t)
        member.tokens.push_back(static_cast<int32_t>(random_.below(50'000)));
      group.members.push_back(std::move(member));
    }
    if (options_.blob_bytes > 0) {
      std::vector<std::byte> bytes(options_.blob_bytes);
      for (auto& byte : bytes) byte = static_cast<std::byte>(random_.below(256));
      group.routing = Blob(std::move(bytes));
    }
    if (options_.change) options_.change(group);
    return group;
  }
  void started(uint32_t group) {
    LifecycleFrame frame{};
    frame.header.kind = static_cast<uint8_t>(TraceFrameKind::kLifecycle);
    frame.header.group = group;
    frame.header.count = static_cast<uint16_t>(LifecycleKind::kGroupStarted);
    frame.at_ns = 500;
    auto made = frame_of(frame);
    take_(made);
  }
  template <class T>
  Sent send(uint32_t link, uint32_t group, const T& message, StepRef cause) {
    const Payload payload = Payload::of(message);
    const auto encoded = encode_message(payload);
    PayloadFrame frame{};
    frame.header.kind = static_cast<uint8_t>(TraceFrameKind::kPayload);
    frame.header.group = group;
    frame.header.count = static_cast<uint16_t>(encoded->blobs.size());
    frame.step = steps_[group] + 1;
    frame.link = link;
    frame.incarnation = 1;
    frame.sequence = ++sequences_[link];
    frame.sent_at_ns = now_ns_ + kTick;  // when the step that sends it begins
    frame.tenant = 0;
    frame.type = link;
    frame.cause_instance = cause.instance.value;
    frame.cause_step = cause.step;
    frame.origin = kEnv;
    frame.payload_check = payload_check(payload);
    frame.body_bytes = static_cast<uint32_t>(encoded->body.size());
    auto made = frame_of(frame);
    append_padded(made.tail, encoded->body);
    for (const Blob& blob : encoded->blobs) {
      const uint64_t size = blob.size();
      append_padded(made.tail, std::as_bytes(std::span(&size, 1)));
      append_padded(made.tail, blob.bytes());
    }
    take_(made);
    return {link, frame.sequence, frame.payload_check, frame.body_bytes, cause, frame.origin};
  }
  void step(uint32_t group, StepKind kind, uint16_t num_emissions, const Sent* input) {
    DeliveryFrame frame{};
    frame.header.kind = static_cast<uint8_t>(TraceFrameKind::kDelivery);
    frame.header.group = group;
    frame.header.count = num_emissions;
    frame.step = ++steps_[group];
    frame.began_ns = now_ns_ += kTick;
    frame.instance = kind == StepKind::kWork ? UINT32_MAX : group;
    frame.duration_us = static_cast<uint32_t>(5 + random_.below(20));
    frame.step_kind = static_cast<uint8_t>(kind);
    frame.tenant = frame.type = frame.cause_instance = frame.origin = UINT32_MAX;
    if (input != nullptr) {
      frame.header.flags = kPayloadStored;
      frame.subject = input->link;
      frame.sequence = input->sequence;
      frame.incarnation = 1;
      frame.tenant = 0;
      frame.type = input->link;
      frame.cause_instance = input->cause.instance.value;
      frame.cause_step = input->cause.step;
      frame.payload_check = input->check;
      frame.payload_bytes = input->num_bytes;
      frame.origin = input->origin;
    }
    auto made = frame_of(frame);
    take_(made);
  }

  const StoryOptions& options_;
  const std::function<void(StoryFrame&)>& take_;
  RandomStream random_;
  int64_t now_ns_ = 1000;
  uint64_t steps_[3] = {}, sequences_[3] = {};
  uint64_t steps_of_trainer_ = 0;
  double reward_ = 0;
  PolicyVersion version_{0};
};

template <class T>
TraceCatalog::Type type_of() {
  const MessageType& type = message_type<T>();
  return {std::string(type.name), type.version, type.schema, type.schema_hash};
}

}  // namespace

TraceCatalog story_catalog() {
  TraceCatalog catalog;
  catalog.program_version = "1";
  catalog.graph_text = "[graph]\nname = \"story\"\n\n[node.trainer]\nlr = 0.1\nseed = 3\n";
  catalog.graph_name = "story";
  catalog.graph_hash = 11;
  catalog.run_id = 7;
  catalog.is_virtual = true;
  catalog.tenants = {"main"};
  catalog.processes = {"main"};
  catalog.groups = {{"env", 0, {0}}, {"rollout.main", 0, {1}}, {"trainer", 0, {2}}};
  catalog.instances = {{"env", "env", "env", 0, UINT32_MAX, {}},
                       {"rollout.main", "rollout", "rollout", 1, 0, {"stall"}},
                       {"trainer", "trainer", "trainer", 2, UINT32_MAX, {}}};
  catalog.links = {
      {"env.task -> rollout.task", 0, 1, "task", "task", 0, false, false, "payload"},
      {"rollout.group -> trainer.group", 1, 2, "group", "group", 1, false, false, "payload"},
      {"trainer.live -> rollout.policy", 2, 1, "live", "policy", 2, true, true, "payload"}};
  catalog.types = {type_of<Task>(), type_of<Group>(), type_of<Live>()};
  return catalog;
}

void tell(const StoryOptions& options, const std::function<void(StoryFrame&)>& take) {
  Teller(options, take).tell();
}

Story::Story(StoryOptions options) : catalog(story_catalog()) {
  tell(options, [this](StoryFrame& frame) { frames.push_back(frame); });
}

StoryFrame& Story::delivery(uint32_t group, uint64_t step) {
  for (auto& frame : frames)
    if (frame.kind() == TraceFrameKind::kDelivery && frame.header().group == group &&
        frame.delivery().step == step)
      return frame;
  CHECK(false, "the story has no such step");
  return frames.front();
}

StoryFrame& Story::payload(uint32_t link, uint64_t sequence) {
  for (auto& frame : frames)
    if (frame.kind() == TraceFrameKind::kPayload && frame.payload().link == link &&
        frame.payload().sequence == sequence)
      return frame;
  CHECK(false, "the story has no such payload");
  return frames.front();
}

void Story::remove(const StoryFrame& frame) {
  frames.erase(frames.begin() + (&frame - frames.data()));
}

void Story::swap_steps(uint32_t group, uint64_t step) {
  StoryFrame& first = delivery(group, step);
  StoryFrame& second = delivery(group, step + 1);
  std::swap(first.delivery().step, second.delivery().step);
  std::swap(first.delivery().began_ns, second.delivery().began_ns);
  std::swap(first, second);
}

SegmentWriterOptions Story::options(const std::filesystem::path& folder, uint64_t segment_bytes,
                                    uint64_t run_id) const {
  SegmentWriterOptions options;
  options.folder = folder / "trace";
  options.run_id = run_id;
  options.segment_bytes = segment_bytes;
  options.packs = false;
  TraceCatalog written = catalog;
  written.run_id = run_id;
  options.catalog = written.to_json().dump();
  return options;
}

void Story::write(const std::filesystem::path& folder, bool ends, uint64_t segment_bytes,
                  uint64_t run_id) const {
  auto writer = SegmentWriter::open(options(folder, segment_bytes, run_id));
  ASSERT_TRUE(writer.ok()) << writer.error().text();
  for (StoryFrame frame : frames) ASSERT_TRUE((*writer)->append(frame.head, frame.tail));
  if (ends) {
    const Status closed = (*writer)->close();
    ASSERT_TRUE(closed.ok()) << closed.error().text();
  }
}

std::shared_ptr<const Trace> open_trace(const std::filesystem::path& folder) {
  auto trace = Trace::open(folder);
  if (!trace.ok()) {
    ADD_FAILURE() << trace.error().text();
    return nullptr;
  }
  return *trace;
}

}  // namespace primerl::story
