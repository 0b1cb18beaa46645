// Every inserted difference is found at its group and step, with the right kind.
#include "runtime/query/diff.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/query/step_text.h"
#include "runtime/trace/segment_files.h"
#include "tests/trace/segment_files.h"
#include "tests/trace/story.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using namespace story;  // NOLINT: the story's own vocabulary
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Two runs on disk.
struct TwoRuns {
  TestFolder a_folder, b_folder;
  std::shared_ptr<const Trace> a, b;
  TraceDiff diff;

  TwoRuns(const Story& of_a, const Story& of_b, bool b_ends = true) {
    of_a.write(a_folder.path());
    of_b.write(b_folder.path(), b_ends);
    compare();
  }
  void compare() {
    a = open_trace(a_folder.path());
    b = open_trace(b_folder.path());
    if (a != nullptr && b != nullptr) diff = diff_traces(*a, *b);
  }
  std::string at(size_t i) const {
    return i < diff.differences.size()
               ? step_text(a->catalog(), diff.differences[i].group, diff.differences[i].step)
               : "none";
  }
  std::string text() const { return to_text(*a, diff); }
};

TEST(Diff, EqualRunsAreEqual) {
  const Story story({.num_rounds = 3000});
  const TwoRuns runs(story, story);
  EXPECT_TRUE(runs.diff.is_equal()) << runs.text();
  EXPECT_EQ(runs.diff.num_steps, runs.a->num_steps());
  EXPECT_THAT(runs.text(), HasSubstr("equal: "));
}

TEST(Diff, TimesAreNoDifference) {
  Story later({.num_rounds = 100});
  for (auto& frame : later.frames)
    if (frame.kind() == TraceFrameKind::kDelivery) {
      frame.delivery().began_ns += 12'345;
      frame.delivery().duration_us += 3;
    }
  const TwoRuns runs(Story({.num_rounds = 100}), later);
  EXPECT_TRUE(runs.diff.is_equal()) << runs.text();
}

// In round 10 the rollout makes its 12th step, because two policies arrived before.
TEST(Diff, AChangedConstantIsTheCauseAndWhatFollowsItsVictims) {
  StoryOptions changed{.num_rounds = 40};
  changed.change = [](Group& group) {
    if (group.ordinal == 10) group.members[1].reward = 2e6;
  };
  const TwoRuns runs(Story({.num_rounds = 40}), Story(changed));
  ASSERT_EQ(runs.diff.differences.size(), 2u) << runs.text();
  const auto& cause = runs.diff.differences[0];
  EXPECT_EQ(runs.at(0), "rollout.main:12");
  EXPECT_TRUE(cause.is_cause);
  EXPECT_EQ(cause.kind, DifferenceKind::kOutput);
  ASSERT_EQ(cause.details.size(), 1u);
  EXPECT_THAT(cause.details[0], HasSubstr("members[1].reward: "));
  EXPECT_THAT(cause.details[0], HasSubstr(" in a, 2000000.0 in b"));
  const auto& victim = runs.diff.differences[1];
  EXPECT_EQ(runs.at(1), "trainer:12");
  EXPECT_FALSE(victim.is_cause);
  EXPECT_EQ(victim.victim_of, "rollout.main:12");
  EXPECT_THAT(runs.text(), HasSubstr("first difference: rollout.main:12 [output] cause"));
}

TEST(Diff, ADifferenceSeenOnlyByReceiversIsCausedByTheSender) {
  // Nothing is stored, so the sender's own records are equal.
  StoryOptions changed{.num_rounds = 40};
  changed.change = [](Group& group) {
    if (group.ordinal == 10) group.members[1].reward = 0.123;
  };
  const auto headers_only = [](Story story) {
    std::erase_if(story.frames,
                  [](StoryFrame& frame) { return frame.kind() == TraceFrameKind::kPayload; });
    for (auto& link : story.catalog.links) link.record = "header";
    return story;
  };
  const TwoRuns runs(headers_only(Story({.num_rounds = 40})), headers_only(Story(changed)));
  ASSERT_EQ(runs.diff.differences.size(), 2u) << runs.text();
  EXPECT_EQ(runs.at(0), "rollout.main:12");
  EXPECT_TRUE(runs.diff.differences[0].is_cause);
  EXPECT_EQ(runs.at(1), "trainer:12");
  EXPECT_EQ(runs.diff.differences[1].victim_of, "rollout.main:12");
  EXPECT_THAT(runs.text(), HasSubstr("content was not stored"));
}

TEST(Diff, OneByteFlippedInAStoredPayloadIsFound) {
  Story flipped({.num_rounds = 40});
  flipped.payload(kGroupLink, 10).tail[6] ^= std::byte{1};
  const TwoRuns runs(Story({.num_rounds = 40}), flipped);
  ASSERT_EQ(runs.diff.differences.size(), 1u) << runs.text();
  EXPECT_EQ(runs.at(0), "rollout.main:12");
  EXPECT_EQ(runs.diff.differences[0].kind, DifferenceKind::kOutput);
  EXPECT_FALSE(runs.diff.differences[0].details.empty());
}

TEST(Diff, AByteFlippedOnDiskIsDamageAndNoDivergence) {
  const Story story({.num_rounds = 40});
  TwoRuns runs(story, story);
  const fs::path file = segment_path(runs.b_folder.path() / "trace", "main", 1, 1);
  uint64_t offset = 0;
  {
    auto reader = SegmentReader::open(file);
    ASSERT_TRUE(reader.ok());
    for (auto frame = (*reader)->next(0); frame;
         frame = (*reader)->next(SegmentReader::next_offset(*frame)))
      if (frame->kind() == TraceFrameKind::kDelivery && frame->header().group == kRollout &&
          frame->as<DeliveryFrame>().step == 12)
        offset = frame->offset;
  }
  auto bytes = file_bytes(file);
  bytes[offset + 50] ^= std::byte{4};
  write_bytes(file, bytes);
  runs.compare();
  EXPECT_FALSE(runs.diff.is_equal());
  EXPECT_THAT(runs.diff.differences, IsEmpty()) << runs.text();
  ASSERT_EQ(runs.diff.missing.size(), 1u);
  EXPECT_EQ(runs.diff.missing[0].kind, TraceFault::Kind::kDamage);
  EXPECT_EQ(runs.diff.missing[0].group, GroupId(kRollout));
  EXPECT_EQ(runs.diff.missing[0].first, 12u);
  EXPECT_EQ(runs.diff.missing[0].last, 12u);
}

TEST(Diff, ARemovedRecordIsMissingNotDifferent) {
  Story removed({.num_rounds = 40});
  removed.remove(removed.delivery(kTrainer, 12));
  const TwoRuns runs(Story({.num_rounds = 40}), removed);
  EXPECT_THAT(runs.diff.differences, IsEmpty()) << runs.text();
  ASSERT_EQ(runs.diff.missing.size(), 1u);
  EXPECT_EQ(runs.diff.missing[0].kind, TraceFault::Kind::kMissingStep);
  EXPECT_FALSE(runs.diff.missing[0].in_a);
  EXPECT_EQ(runs.diff.missing[0].group, GroupId(kTrainer));
  EXPECT_EQ(runs.diff.missing[0].first, 12u);
  EXPECT_THAT(runs.text(), HasSubstr("step 12 of 'trainer' is not in b"));
}

TEST(Diff, TwoSwappedDeliveriesAreAnOrder) {
  Story swapped({.num_rounds = 40});
  swapped.swap_steps(kTrainer, 11);
  const TwoRuns runs(Story({.num_rounds = 40}), swapped);
  ASSERT_EQ(runs.diff.differences.size(), 1u) << runs.text();
  EXPECT_EQ(runs.at(0), "trainer:11");
  EXPECT_EQ(runs.diff.differences[0].kind, DifferenceKind::kOrder);
  EXPECT_TRUE(runs.diff.differences[0].is_cause);
  EXPECT_THAT(runs.diff.differences[0].what, HasSubstr("#9 in a, group <- rollout.main #10 in b"));
}

TEST(Diff, AChangedSchemaIsNamedWithItsField) {
  Story changed({.num_rounds = 40});
  auto& type = changed.catalog.types[kGroupLink];
  const size_t at = type.schema.find("reward:f64");
  ASSERT_NE(at, std::string::npos);
  type.schema.replace(at, 10, "reward:f32");
  type.schema_hash ^= 1;
  for (auto& frame : changed.frames) {
    if (frame.kind() == TraceFrameKind::kDelivery && frame.delivery().type == kGroupLink)
      frame.delivery().payload_check ^= 1;
    if (frame.kind() == TraceFrameKind::kPayload && frame.payload().type == kGroupLink)
      frame.payload().payload_check ^= 1;
  }
  const TwoRuns runs(Story({.num_rounds = 40}), changed);
  EXPECT_THAT(runs.diff.schemas, ElementsAre("Group: field reward:f64 in a, reward:f32 in b"));
  ASSERT_FALSE(runs.diff.differences.empty());
  EXPECT_EQ(runs.at(0), "rollout.main:1");  // the first Group in the run
  EXPECT_EQ(runs.diff.differences[0].kind, DifferenceKind::kSchema);
}

TEST(Diff, AChangedOptionIsNamed) {
  Story changed({.num_rounds = 8});
  changed.catalog.graph_text = "[graph]\nname = \"story\"\n\n[node.trainer]\nlr = 0.2\n";
  changed.catalog.graph_hash = 12;
  const TwoRuns runs(Story({.num_rounds = 8}), changed);
  EXPECT_THAT(runs.diff.options, ElementsAre("node.trainer.lr: 0.1 in a, 0.2 in b",
                                             "node.trainer.seed: 3 in a, absent in b"));
  EXPECT_THAT(runs.diff.differences, IsEmpty());
  EXPECT_FALSE(runs.diff.is_equal());
}

TEST(Diff, OptionsAreComparedAsTheyAreWritten) {
  const std::string a =
      "[graph]\nname = \"x\"\n\n[resource.learner]\nloss = { kind = \"dppo\" }\n\n"
      "[edges]\nforward = [\n  \"a.b -> c.d\",\n  \"e = [f]\",\n]\n";
  std::string b = a;
  b.replace(b.find("dppo"), 4, "ppo");
  b.replace(b.find("c.d"), 3, "c.e");
  EXPECT_THAT(option_differences(a, a), IsEmpty());
  EXPECT_THAT(option_differences(a, b),
              ElementsAre("edges.forward: [\"a.b -> c.d\",\"e = [f]\",] in a, "
                          "[\"a.b -> c.e\",\"e = [f]\",] in b",
                          "resource.learner.loss: { kind = \"dppo\" } in a, "
                          "{ kind = \"ppo\" } in b"));
}

TEST(Diff, AFailedHandlerIsAnOutcome) {
  Story failed({.num_rounds = 40});
  failed.delivery(kTrainer, 13).header().flags |= kFailed;
  const TwoRuns runs(Story({.num_rounds = 40}), failed);
  ASSERT_EQ(runs.diff.differences.size(), 1u) << runs.text();
  EXPECT_EQ(runs.at(0), "trainer:13");
  EXPECT_EQ(runs.diff.differences[0].kind, DifferenceKind::kOutcome);
}

TEST(Diff, ARunThatEndedEarlierIsACount) {
  const TwoRuns runs(Story({.num_rounds = 40}), Story({.num_rounds = 37}));
  ASSERT_FALSE(runs.diff.differences.empty());
  EXPECT_EQ(runs.at(0), "env:38");
  EXPECT_EQ(runs.diff.differences[0].kind, DifferenceKind::kCount);
  EXPECT_TRUE(runs.diff.differences[0].is_cause);
  EXPECT_FALSE(runs.diff.differences[1].is_cause);
}

// The last record is truncated at each of its bytes. That is a truncated record after the step
// before it, never a divergence.
TEST(Diff, ATailTornAtEveryByteIsACut) {
  const Story story({.num_rounds = 40});
  TwoRuns runs(story, story, false);
  const fs::path file = segment_path(runs.b_folder.path() / "trace", "main", 1, 1);
  uint64_t begin = 0, end = 0;
  {
    auto reader = SegmentReader::open(file);
    ASSERT_TRUE(reader.ok());
    for (auto frame = (*reader)->next(0); frame;
         frame = (*reader)->next(SegmentReader::next_offset(*frame)))
      if (frame->kind() == TraceFrameKind::kDelivery) {
        begin = frame->offset;
        end = SegmentReader::next_offset(*frame);
      }
  }
  ASSERT_EQ(end - begin, sizeof(DeliveryFrame));
  const auto whole = file_bytes(file);
  for (uint64_t size = begin; size < end; ++size) {
    for (const bool is_padded : {false, true}) {
      auto torn =
          std::vector<std::byte>(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
      if (is_padded) torn.resize(whole.size());
      if (torn == whole) continue;  // its last bytes are zeros anyway
      write_bytes(file, torn);
      runs.compare();
      ASSERT_THAT(runs.diff.differences, IsEmpty()) << size - begin << "\n" << runs.text();
      ASSERT_EQ(runs.diff.missing.size(), 1u) << size - begin << "\n" << runs.text();
      EXPECT_EQ(runs.diff.missing[0].kind, TraceFault::Kind::kCutTail);
      EXPECT_EQ(runs.diff.missing[0].group, GroupId(kRollout));
      EXPECT_EQ(runs.diff.missing[0].first, 50u);
      EXPECT_EQ(runs.b->last_step(GroupId(kRollout)), 49u);
    }
  }
}

TEST(Diff, AMissingSegmentIsSaidWithItsSteps) {
  const Story story({.num_rounds = 8000});
  TwoRuns runs(story, story);
  const fs::path file = segment_path(runs.b_folder.path() / "trace", "main", 1, 2);
  ASSERT_TRUE(fs::exists(file));
  fs::remove(file);
  runs.compare();
  EXPECT_THAT(runs.diff.differences, IsEmpty()) << runs.text();
  ASSERT_EQ(runs.diff.missing.size(), 3u);
  for (const auto& missing : runs.diff.missing) {
    EXPECT_EQ(missing.kind, TraceFault::Kind::kMissingSegment);
    EXPECT_GT(missing.last, missing.first);
  }
}

TEST(Diff, NumbersMayDifferWhereNamesAgree) {
  // The same graph with its links and types in another order.
  Story renumbered({.num_rounds = 40});
  std::swap(renumbered.catalog.links[0], renumbered.catalog.links[1]);
  const auto swapped = [](uint32_t link) { return link < 2 ? 1 - link : link; };
  for (auto& frame : renumbered.frames) {
    if (frame.kind() == TraceFrameKind::kDelivery &&
        frame.delivery().step_kind == static_cast<uint8_t>(StepKind::kMessage))
      frame.delivery().subject = swapped(frame.delivery().subject);
    if (frame.kind() == TraceFrameKind::kPayload)
      frame.payload().link = swapped(frame.payload().link);
  }
  const Story story({.num_rounds = 40});
  const TwoRuns same(story, renumbered);
  EXPECT_TRUE(same.diff.is_equal()) << same.text();
  renumbered.delivery(kTrainer, 7).delivery().payload_check ^= 1;
  const TwoRuns other(story, renumbered);
  ASSERT_FALSE(other.diff.differences.empty());
  EXPECT_FALSE(other.diff.is_equal());
}

}  // namespace
}  // namespace primerl
