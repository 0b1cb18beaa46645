// Opening a trace: every step, payload and note is found again, and what is missing is said.
#include "runtime/trace/read/trace.h"

#include <algorithm>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/base/random.h"
#include "runtime/trace/read/summary.h"
#include "runtime/trace/segment_files.h"
#include "runtime/wire/payload_check.h"
#include "tests/trace/segment_files.h"
#include "tests/trace/story.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using namespace story;  // NOLINT: the story's own vocabulary
using ::testing::HasSubstr;

std::vector<TraceFault> faults_of(const Trace& trace, TraceFault::Kind kind) {
  std::vector<TraceFault> found;
  for (const auto& fault : trace.faults())
    if (fault.kind == kind) found.push_back(fault);
  return found;
}

fs::path segment(const TestFolder& folder, uint64_t number) {
  return segment_path(folder.path() / "trace", "main", 1, number);
}

TEST(Trace, FindsEveryStepAndPayloadAgain) {
  TestFolder folder;
  Story story({.num_rounds = 8000, .seed = 3, .blob_bytes = 100});
  story.write(folder.path());
  // The second opening goes by the indices the first has written.
  for (const bool is_indexed : {false, true}) {
    const auto trace = open_trace(folder.path());
    ASSERT_NE(trace, nullptr);
    EXPECT_TRUE(trace->is_complete());
    EXPECT_TRUE(trace->is_closed());
    EXPECT_GT(trace->summary().num_segments, 3u);
    EXPECT_EQ(trace->summary().num_indexed, is_indexed ? trace->summary().num_segments : 0);
    uint64_t num_steps = 0;
    for (StoryFrame& frame : story.frames) {
      if (frame.kind() == TraceFrameKind::kDelivery) {
        const auto& delivery = frame.delivery();
        const auto step = trace->step(GroupId(delivery.header.group), delivery.step);
        ASSERT_TRUE(step.has_value()) << delivery.header.group << ":" << delivery.step;
        ++num_steps;
        EXPECT_EQ(step->payload_check, delivery.payload_check);
        EXPECT_EQ(step->began.to_nanoseconds(), delivery.began_ns);
        if (step->kind != StepKind::kMessage) continue;
        const auto at = trace->delivery({step->link, step->incarnation, step->sequence});
        ASSERT_TRUE(at.has_value());
        EXPECT_EQ(at->step, delivery.step);
      } else if (frame.kind() == TraceFrameKind::kPayload) {
        const auto& fixed = frame.payload();
        const MessageKey key{LinkId(fixed.link), fixed.incarnation, fixed.sequence};
        const auto payload = trace->payload(key);
        ASSERT_TRUE(payload.ok()) << payload.error().text();
        EXPECT_TRUE(check_payload(trace->catalog().types[fixed.type], *payload).ok());
        EXPECT_THAT(trace->stored_emissions(GroupId(fixed.header.group), fixed.step),
                    ::testing::ElementsAre(key));
      }
    }
    EXPECT_EQ(trace->num_steps(), num_steps);
    EXPECT_EQ(trace->started(GroupId(1)), Time::from_nanoseconds(500));
  }
}

TEST(Trace, NothingIsFoundBeyondItsEnds) {
  TestFolder folder;
  Story({.num_rounds = 8}).write(folder.path());
  const auto trace = open_trace(folder.path());
  ASSERT_NE(trace, nullptr);
  EXPECT_EQ(trace->first_step(GroupId(kEnv)), 1u);
  EXPECT_EQ(trace->last_step(GroupId(kEnv)), 8u);
  EXPECT_FALSE(trace->step(GroupId(kEnv), 0).has_value());
  EXPECT_TRUE(trace->step(GroupId(kEnv), 8).has_value());
  EXPECT_FALSE(trace->step(GroupId(kEnv), 9).has_value());
  EXPECT_FALSE(trace->step(GroupId(77), 1).has_value());
  EXPECT_FALSE(trace->delivery({LinkId(kTaskLink), 1, 9}).has_value());
  EXPECT_FALSE(trace->delivery({LinkId(kTaskLink), 2, 1}).has_value());
  const auto none = trace->payload({LinkId(kTaskLink), 1, 9});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code(), Code::kNotFound);
}

TEST(Trace, StepsAreVisitedInOrderOfTime) {
  TestFolder folder;
  Story({.num_rounds = 50}).write(folder.path());
  const auto trace = open_trace(folder.path());
  ASSERT_NE(trace, nullptr);
  std::vector<TraceStep> seen;
  trace->visit(Time::from_nanoseconds(INT64_MIN), Time::from_nanoseconds(INT64_MAX),
               [&](const TraceStep& step) {
                 seen.push_back(step);
                 return true;
               });
  EXPECT_EQ(seen.size(), trace->num_steps());
  EXPECT_TRUE(std::ranges::is_sorted(seen, {}, &TraceStep::began));
  // From and to are both within.
  std::vector<TraceStep> part;
  trace->visit(seen[10].began, seen[20].began, [&](const TraceStep& step) {
    part.push_back(step);
    return true;
  });
  ASSERT_EQ(part.size(), 11u);
  EXPECT_EQ(part.front().began, seen[10].began);
  EXPECT_EQ(part.back().began, seen[20].began);
}

TEST(Trace, ACutTailIsSaidHostByHost) {
  TestFolder folder;
  Story({.num_rounds = 8}).write(folder.path(), false);
  const auto trace = open_trace(folder.path());
  ASSERT_NE(trace, nullptr);
  EXPECT_FALSE(trace->is_complete());
  EXPECT_FALSE(trace->is_closed());
  const auto cuts = faults_of(*trace, TraceFault::Kind::kCutTail);
  ASSERT_EQ(cuts.size(), 3u);
  EXPECT_EQ(cuts[kEnv].text, "tail cut after step 8 of 'env'");
  EXPECT_EQ(cuts[kTrainer].text, "tail cut after step 10 of 'trainer'");
}

// The process was killed after it wrote the end frame, before it removed the segments that it had
// prepared.
TEST(Trace, WithAnEndFrameIsClosedWhateverSegmentWasPrepared) {
  TestFolder folder;
  const Story story({.num_rounds = 8});
  story.write(folder.path());
  ASSERT_FALSE(fs::exists(segment(folder, 2)));
  write_bytes(segment(folder, 2), prepared_segment(story.options(folder.path())));
  const auto trace = open_trace(folder.path());
  ASSERT_NE(trace, nullptr);
  EXPECT_TRUE(trace->is_closed());
  EXPECT_TRUE(trace->is_complete());
  EXPECT_TRUE(trace->faults().empty()) << trace->faults().front().text;
}

TEST(Trace, AMissingRecordIsNamed) {
  TestFolder folder;
  Story story({.num_rounds = 20});
  story.remove(story.delivery(kTrainer, 7));
  story.write(folder.path());
  const auto trace = open_trace(folder.path());
  ASSERT_NE(trace, nullptr);
  const auto missing = faults_of(*trace, TraceFault::Kind::kMissingStep);
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_EQ(missing[0].text, "step 7 of 'trainer' missing, although nothing around is damaged");
  EXPECT_FALSE(trace->step(GroupId(kTrainer), 7).has_value());
  EXPECT_TRUE(trace->step(GroupId(kTrainer), 8).has_value());
  EXPECT_FALSE(trace->is_complete());
}

TEST(Trace, AMissingSegmentIsNamedWithItsSteps) {
  TestFolder folder;
  Story({.num_rounds = 8000}).write(folder.path());
  ASSERT_TRUE(fs::exists(segment(folder, 4)));
  const auto whole = open_trace(folder.path());
  fs::remove(segment(folder, 2));
  const auto trace = open_trace(folder.path());
  ASSERT_NE(trace, nullptr);
  EXPECT_EQ(trace->first_step(GroupId(kEnv)), 1u);
  EXPECT_EQ(trace->last_step(GroupId(kEnv)), whole->last_step(GroupId(kEnv)));
  const auto missing = faults_of(*trace, TraceFault::Kind::kMissingSegment);
  ASSERT_EQ(missing.size(), 4u);  // the segment, and the steps of each group
  EXPECT_THAT(missing[0].text, HasSubstr("segment 2 of process 'main' (incarnation 1) missing"));
  EXPECT_EQ(missing[1].group, GroupId(kEnv));
  EXPECT_FALSE(trace->step(GroupId(kEnv), missing[1].first).has_value());
  EXPECT_TRUE(trace->step(GroupId(kEnv), missing[1].first - 1).has_value());
  EXPECT_FALSE(trace->step(GroupId(kEnv), missing[1].last).has_value());
  EXPECT_TRUE(trace->step(GroupId(kEnv), missing[1].last + 1).has_value());
}

TEST(Trace, RetiredSegmentsAreNoFaultButNoWholeTraceEither) {
  TestFolder folder;
  Story({.num_rounds = 8000}).write(folder.path());
  fs::remove(segment(folder, 1));
  ASSERT_TRUE(set_retired_through(folder.path() / "trace", "main", 1, 1).ok());
  const auto trace = open_trace(folder.path());
  ASSERT_NE(trace, nullptr);
  EXPECT_FALSE(faults_of(*trace, TraceFault::Kind::kRetired).empty());
  for (const auto& fault : trace->faults()) EXPECT_FALSE(fault.is_fault()) << fault.text;
  EXPECT_GT(trace->first_step(GroupId(kEnv)), 1u);
  EXPECT_FALSE(trace->is_complete());
}

TEST(Trace, AFlippedByteIsDamageAtItsStep) {
  TestFolder folder;
  Story({.num_rounds = 20}).write(folder.path());
  auto bytes = file_bytes(segment(folder, 1));
  auto reader = SegmentReader::open(segment(folder, 1));
  ASSERT_TRUE(reader.ok());
  uint64_t offset = 0;
  for (auto frame = (*reader)->next(0); frame;
       frame = (*reader)->next(SegmentReader::next_offset(*frame)))
    if (frame->kind() == TraceFrameKind::kDelivery && frame->header().group == kTrainer &&
        frame->as<DeliveryFrame>().step == 5)
      offset = frame->offset;
  ASSERT_GT(offset, 0u);
  (void)open_trace(folder.path());  // writes the index of the whole file
  bytes[offset + 40] ^= std::byte{1};
  write_bytes(segment(folder, 1), bytes);
  const auto trace = open_trace(folder.path());
  ASSERT_NE(trace, nullptr);
  const auto damage = faults_of(*trace, TraceFault::Kind::kDamage);
  ASSERT_EQ(damage.size(), 2u);  // the bytes, and the step that was there
  EXPECT_EQ(damage[0].offset, offset);
  EXPECT_EQ(damage[1].text, "step 5 of 'trainer' missing: in a damaged segment");
}

TEST(Trace, AnIndexIsNeverBelievedOverItsSegment) {
  TestFolder folder;
  Story({.num_rounds = 8000}).write(folder.path());
  const auto first = open_trace(folder.path());
  // Each index under the name of another segment, with that one's facts.
  auto index = segment(folder, 1);
  index.replace_extension(".index");
  auto other = segment(folder, 2);
  other.replace_extension(".index");
  ASSERT_TRUE(fs::exists(index));
  auto bytes = file_bytes(index);
  bytes[bytes.size() / 2] ^= std::byte{1};
  write_bytes(index, bytes);
  write_bytes(other, {});
  const auto again = open_trace(folder.path());
  ASSERT_NE(again, nullptr);
  EXPECT_TRUE(again->is_complete());
  EXPECT_EQ(again->summary().num_indexed, again->summary().num_segments - 2);
  EXPECT_EQ(again->num_steps(), first->num_steps());
}

// The clock of a file system may be coarse: a segment of another length has another index.
TEST(Trace, AnIndexOfASegmentOfAnotherLengthIsNotUsed) {
  TestFolder folder;
  Story({.num_rounds = 20}).write(folder.path());
  const auto whole = open_trace(folder.path());
  ASSERT_NE(whole, nullptr);
  const auto written = fs::last_write_time(segment(folder, 1));
  fs::resize_file(segment(folder, 1), fs::file_size(segment(folder, 1)) * 3 / 4);
  fs::last_write_time(segment(folder, 1), written);
  const auto shorter = open_trace(folder.path());
  ASSERT_NE(shorter, nullptr);
  EXPECT_EQ(shorter->summary().num_indexed, 0);
  EXPECT_LT(shorter->num_steps(), whole->num_steps());
}

// An index that was made to lie, its hash made to fit: whatever it says, nothing breaks, and what
// is handed out is what the segment says.
TEST(Trace, AHostileIndexCannotDoHarm) {
  TestFolder folder;
  Story({.num_rounds = 4000}).write(folder.path());
  const auto honest = open_trace(folder.path());
  auto index = segment(folder, 1);
  index.replace_extension(".index");
  const auto bytes = file_bytes(index);
  constexpr uint64_t kSeed = 11;
  RandomStream random(kSeed);
  for (int turn = 0; turn < 300; ++turn) {
    SCOPED_TRACE(fmt::format("seed {}, turn {}", kSeed, turn));
    auto changed = bytes;
    // Sections come first: most changes go there.
    const size_t reach = random.below(4) == 0 ? changed.size() : size_t{2000};
    for (uint64_t i = 0; i <= random.below(4); ++i) {
      const size_t at = sizeof(IndexHeader) - 64 + random.below(reach - sizeof(IndexHeader));
      changed[std::min(at, changed.size() - 1)] = static_cast<std::byte>(random.below(256));
    }
    const uint64_t hash =
        hash_bytes(std::span(changed).subspan(offsetof(IndexHeader, num_bytes)), kIndexVersion);
    std::memcpy(changed.data() + offsetof(IndexHeader, hash), &hash, sizeof hash);
    write_bytes(index, changed);
    const auto trace = Trace::open(folder.path());
    if (!trace.ok()) continue;
    for (uint64_t step = 1; step < 60; ++step)
      if (const auto found = (*trace)->step(GroupId(kTrainer), step)) {
        EXPECT_EQ(found->payload_check, honest->step(GroupId(kTrainer), step)->payload_check);
      }
    (void)(*trace)->payload({LinkId(kGroupLink), 1, 7});
    (void)(*trace)->delivery({LinkId(kGroupLink), 1, 7});
    (void)(*trace)->stored_emissions(GroupId(kRollout), 7);
    uint64_t num_seen = 0;
    (*trace)->visit(Time(), Time::from_nanoseconds(INT64_MAX),
                    [&](const TraceStep&) { return ++num_seen < 1000; });
  }
}

TEST(Trace, SegmentsOfTwoRunsAreRefused) {
  TestFolder folder, stranger;
  Story({.num_rounds = 8000}).write(folder.path());
  Story({.num_rounds = 8000}).write(stranger.path(), true, kStorySegmentBytes, 8);
  fs::copy_file(segment(stranger, 2), segment(folder, 2), fs::copy_options::overwrite_existing);
  const auto trace = Trace::open(folder.path());
  ASSERT_FALSE(trace.ok());
  EXPECT_EQ(trace.error().code(), Code::kCorrupt);
  EXPECT_THAT(trace.error().message(), HasSubstr("belongs to another run"));
}

TEST(Trace, AFolderWithoutTraceSaysSo) {
  TestFolder folder;
  const auto trace = Trace::open(folder.path());
  ASSERT_FALSE(trace.ok());
  EXPECT_EQ(trace.error().code(), Code::kNotFound);
  EXPECT_THAT(trace.error().message(), HasSubstr("no trace in"));
  EXPECT_FALSE(Trace::open(folder.path() / "absent").ok());
}

TEST(Trace, AnotherFormatVersionIsNamed) {
  TestFolder folder;
  Story({.num_rounds = 4}).write(folder.path());
  auto bytes = file_bytes(segment(folder, 1));
  bytes[8] = std::byte{9};
  write_bytes(segment(folder, 1), bytes);
  const auto trace = Trace::open(folder.path());
  ASSERT_FALSE(trace.ok());
  EXPECT_THAT(trace.error().message(), HasSubstr("format version 9; this program reads 3"));
}

TEST(StepNames, NameInstancesHostsAndNodes) {
  const TraceCatalog catalog = story_catalog();
  const auto step = parse_step_name(catalog, "rollout.main:88");
  ASSERT_TRUE(step.ok());
  EXPECT_EQ(step->instance, InstanceId(kRollout));
  EXPECT_EQ(step->step, 88u);
  EXPECT_EQ(parse_step_name(catalog, "rollout")->instance, InstanceId(kRollout));
  EXPECT_FALSE(parse_step_name(catalog, "trainer:0").ok());
  EXPECT_FALSE(parse_step_name(catalog, "trainer:x").ok());
  const auto near = parse_step_name(catalog, "trainre:4");
  ASSERT_FALSE(near.ok());
  EXPECT_THAT(near.error().text(), HasSubstr("did you mean 'trainer'?"));
}

}  // namespace
}  // namespace primerl
