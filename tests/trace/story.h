/// Story: a small generated run. An environment's tasks become groups; a trainer answers every
/// fourth group with a new policy. A test edits its frames, which are then written as segments. So
/// a test inserts one difference and checks whether it is found.
///
///   env.task -> rollout.task    rollout.group -> trainer.group    trainer.live ~> rollout.policy
///
/// Everything is computed from the seed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "graph/message_type.h"
#include "runtime/trace/catalog.h"
#include "runtime/trace/frames.h"
#include "runtime/trace/read/trace.h"
#include "runtime/trace/record/segment_writer.h"

namespace primerl::story {

struct Task {
  static constexpr std::string_view kName = "Task";
  static constexpr uint32_t kVersion = 1;
  uint64_t ordinal = 0;
  std::string prompt;
  template <class F>
  static void fields(F& f) {
    f("ordinal", &Task::ordinal)("prompt", &Task::prompt);
  }
};

struct Member {
  uint64_t trajectory = 0;
  double reward = 0;
  std::vector<int32_t> tokens;
  template <class F>
  static void fields(F& f) {
    f("trajectory", &Member::trajectory)("reward", &Member::reward)("tokens", &Member::tokens);
  }
};

struct Group {
  static constexpr std::string_view kName = "Group";
  static constexpr uint32_t kVersion = 1;
  uint64_t ordinal = 0;
  PolicyVersion version;
  std::vector<Member> members;
  Blob routing;
  template <class F>
  static void fields(F& f) {
    f("ordinal", &Group::ordinal)("version", &Group::version)("members", &Group::members)(
        "routing", &Group::routing);
  }
};

struct Live {
  static constexpr std::string_view kName = "Live";
  static constexpr uint32_t kVersion = 1;
  PolicyVersion version;
  template <class F>
  static void fields(F& f) {
    f("version", &Live::version);
  }
};

inline constexpr uint32_t kEnv = 0, kRollout = 1, kTrainer = 2;  // groups and instances
inline constexpr uint32_t kTaskLink = 0, kGroupLink = 1, kLiveConnection = 2;
inline constexpr uint64_t kBatch = 4;  // groups per policy
/// About the smallest size that a writer accepts: 8000 rounds fill four or more segments.
inline constexpr uint64_t kStorySegmentBytes = 1'310'720;

/// A frame in the form that SegmentWriter::append() takes.
struct StoryFrame {
  std::vector<std::byte> head, tail;
  TraceFrameHeader& header() { return *reinterpret_cast<TraceFrameHeader*>(head.data()); }
  TraceFrameKind kind() { return static_cast<TraceFrameKind>(header().kind); }
  DeliveryFrame& delivery() { return *reinterpret_cast<DeliveryFrame*>(head.data()); }
  PayloadFrame& payload() { return *reinterpret_cast<PayloadFrame*>(head.data()); }
};

struct StoryOptions {
  uint64_t num_rounds = 40;
  uint64_t seed = 1;
  /// Changes a group before it is sent; later values that depend on it (the next policy) change
  /// too.
  std::function<void(Group&)> change = {};
  size_t blob_bytes = 0;  // for each group
};

class Story {
 public:
  explicit Story(StoryOptions options = {});

  TraceCatalog catalog;
  std::vector<StoryFrame> frames;

  /// The delivery of a step; CHECKs that it exists.
  StoryFrame& delivery(uint32_t group, uint64_t step);
  /// The payload of the nth message of a link.
  StoryFrame& payload(uint32_t link, uint64_t sequence);
  void remove(const StoryFrame& frame);
  /// Swaps the order of two adjacent steps of a group.
  void swap_steps(uint32_t group, uint64_t step);

  /// The options with which write() opens its writer.
  SegmentWriterOptions options(const std::filesystem::path& folder,
                               uint64_t segment_bytes = kStorySegmentBytes,
                               uint64_t run_id = 7) const;
  /// Writes into `folder`/trace. `ends` = false omits the end frame, as after a death.
  void write(const std::filesystem::path& folder, bool ends = true,
             uint64_t segment_bytes = kStorySegmentBytes, uint64_t run_id = 7) const;
};

/// The catalog of a story.
TraceCatalog story_catalog();

/// Calls `take` with every frame in order, instead of keeping them: for long stories. The frames
/// are reused.
void tell(const StoryOptions& options, const std::function<void(StoryFrame&)>& take);

/// Opens a trace; fails the test if that fails.
std::shared_ptr<const Trace> open_trace(const std::filesystem::path& folder);

}  // namespace primerl::story
