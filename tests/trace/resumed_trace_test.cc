// A run that was resumed from saved state has one folder per start. Read together they must be
// equal to the record of one uninterrupted start.
#include <algorithm>
#include <filesystem>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/base/random.h"
#include "runtime/query/diff.h"
#include "runtime/query/maintenance.h"
#include "runtime/trace/read/summary.h"
#include "runtime/trace/read/trace.h"
#include "runtime/trace/segment_files.h"
#include "tests/trace/segment_files.h"
#include "tests/trace/story.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using namespace story;  // NOLINT: the story's own vocabulary
using ::testing::HasSubstr;

/// Every tenth story has several segments and digest blocks.
uint64_t rounds_of(uint64_t seed) { return seed % 10 == 0 ? 8000 : 400; }

uint64_t step_of(StoryFrame& frame) {
  switch (frame.kind()) {
    case TraceFrameKind::kDelivery:
      return frame.delivery().step;
    case TraceFrameKind::kPayload:
      return frame.payload().step;
    default:
      return 0;  // the frame of a group's start
  }
}

/// The frame numbers at which a start was cut and killed.
struct Seam {
  size_t cut = 0, kill = 0;
};

/// A story recorded by several starts. Each start resumes from a cut of the one before, which had
/// recorded more, different steps before it was killed.
class ToldInStarts {
 public:
  ToldInStarts(const fs::path& folder, uint64_t seed, const std::vector<Seam>& seams)
      : folder_(folder), whole_({.num_rounds = rounds_of(seed), .seed = seed}) {
    const auto change = [](Group& group) {
      for (Member& member : group.members) member.reward += 1;
    };
    const Story other({.num_rounds = rounds_of(seed), .seed = seed, .change = change});
    std::vector<uint64_t> base(3, 0);
    for (size_t i = 0; i <= seams.size(); ++i) {
      Story start = whole_;
      if (i > 0) start.catalog.recovers = fmt::format("trace.{}", i);
      start.frames.clear();
      const size_t cut = i < seams.size() ? seams[i].cut : whole_.frames.size();
      const size_t end = i < seams.size() ? seams[i].kill : whole_.frames.size();
      for (size_t at = 0; at < end; ++at) {
        StoryFrame frame = (at < cut ? whole_ : other).frames[at];
        const uint64_t step = step_of(frame);
        if (step == 0 || step > base[frame.header().group]) start.frames.push_back(frame);
      }
      start.write(folder, i == seams.size());
      if (i > 0) save(base);
      for (size_t at = 0; at < cut; ++at)
        if (StoryFrame frame = whole_.frames[at]; frame.kind() == TraceFrameKind::kDelivery)
          base[frame.header().group] = step_of(frame);
      if (i < seams.size()) fs::rename(folder / "trace", folder / fmt::format("trace.{}", i + 1));
    }
  }

  Story& whole() { return whole_; }

 private:
  void save(const std::vector<uint64_t>& steps) const {
    CutHead head;
    head.run_id = 7;
    head.process = "main";
    head.incarnation = 1;
    for (uint32_t group = 0; group < steps.size(); ++group)
      head.steps.emplace_back(group, steps[group]);
    ASSERT_TRUE(write_cut(folder_ / "trace", head, {}).ok());
  }

  const fs::path folder_;
  Story whole_;
};

std::vector<Seam> seams_of(uint64_t seed, size_t num_frames) {
  RandomStream draw(mix(seed, 3));
  std::vector<Seam> seams;
  size_t at = 20;
  for (uint64_t left = 1 + draw.below(4); left > 0; --left) {
    const size_t cut = at + draw.below(num_frames / 6);
    seams.push_back({cut, cut + draw.below(num_frames / 6)});
    at = cut;
  }
  return seams;
}

void expect_same(const Trace& got, const Trace& wanted, Story& story) {
  for (StoryFrame& frame : story.frames) {
    const GroupId group(frame.header().group);
    if (frame.kind() == TraceFrameKind::kPayload) {
      const auto& fixed = frame.payload();
      const MessageKey key{LinkId(fixed.link), fixed.incarnation, fixed.sequence};
      const auto payload = got.payload(key);
      ASSERT_TRUE(payload.ok()) << payload.error().text();
      ASSERT_EQ(payload->payload_check, fixed.payload_check);
      ASSERT_EQ(got.stored_emissions(group, fixed.step),
                wanted.stored_emissions(group, fixed.step));
    }
    if (frame.kind() != TraceFrameKind::kDelivery) continue;
    const auto step = got.step(group, frame.delivery().step);
    ASSERT_TRUE(step.has_value());
    ASSERT_EQ(step->payload_check, frame.delivery().payload_check);
    if (step->kind != StepKind::kMessage) continue;
    const auto at = got.delivered_step({step->link, step->incarnation, step->sequence});
    ASSERT_TRUE(at.has_value());
    ASSERT_EQ(at->step, step->step);
  }
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(got.first_step(GroupId(i)), wanted.first_step(GroupId(i)));
    EXPECT_EQ(got.last_step(GroupId(i)), wanted.last_step(GroupId(i)));
    EXPECT_EQ(got.started(GroupId(i)), wanted.started(GroupId(i)));
    for (uint64_t block = 0; block <= wanted.last_step(GroupId(i)) / 1024; ++block) {
      const auto digest = got.digest(GroupId(i), block);
      EXPECT_TRUE(!digest || digest == wanted.digest(GroupId(i), block));
    }
  }
}

void expect_same_totals(const TraceSummary& got, const TraceSummary& wanted) {
  EXPECT_EQ(got.num_steps, wanted.num_steps);
  EXPECT_EQ(got.num_payloads, wanted.num_payloads);
  EXPECT_EQ(got.first_ns, wanted.first_ns);
  for (size_t i = 0; i < wanted.links.size(); ++i) {
    EXPECT_EQ(got.links[i].stats.num_messages, wanted.links[i].stats.num_messages);
    EXPECT_EQ(got.links[i].stats.num_bytes, wanted.links[i].stats.num_bytes);
    EXPECT_EQ(got.links[i].stats.busy_us, wanted.links[i].stats.busy_us);
    EXPECT_EQ(got.links[i].stats.handler_us.counts, wanted.links[i].stats.handler_us.counts);
    EXPECT_EQ(got.links[i].num_skipped, wanted.links[i].num_skipped);
    EXPECT_EQ(got.links[i].num_stored, wanted.links[i].num_stored);
  }
  for (size_t i = 0; i < wanted.groups.size(); ++i)
    for (size_t kind = 0; kind < wanted.groups[i].size(); ++kind) {
      EXPECT_EQ(got.groups[i][kind].num_steps, wanted.groups[i][kind].num_steps);
      EXPECT_EQ(got.groups[i][kind].num_emissions, wanted.groups[i][kind].num_emissions);
    }
}

TEST(AResumedRun, IsReadAsTheRecordOfOneStart) {
  for (uint64_t seed = 1; seed <= 60 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    TestFolder folder, reference;
    const Story story({.num_rounds = rounds_of(seed), .seed = seed});
    const auto seams = seams_of(seed, story.frames.size());
    ToldInStarts told(folder.path(), seed, seams);
    told.whole().write(reference.path());
    for (const bool is_indexed : {false, true}) {
      SCOPED_TRACE(is_indexed);
      const auto got = open_trace(folder.path());
      const auto wanted = open_trace(reference.path());
      ASSERT_NE(got, nullptr);
      EXPECT_EQ(got->num_starts(), seams.size() + 1);
      EXPECT_TRUE(got->is_complete());
      EXPECT_TRUE(got->is_closed());
      expect_same(*got, *wanted, told.whole());
      expect_same_totals(got->summary(), wanted->summary());
      const auto diff = diff_traces(*got, *wanted);
      EXPECT_TRUE(diff.is_equal());
    }
    const auto report = verify_trace(folder.path());
    ASSERT_TRUE(report.ok()) << report.error().text();
    EXPECT_TRUE(report->is_sound());
    EXPECT_TRUE(report->is_closed);
    EXPECT_EQ(report->num_starts, seams.size() + 1);
  }
}

std::string all_texts(const VerifyReport& report) {
  std::string text;
  for (const TraceFault& fault : report.faults) text += fault.text + "\n";
  return text;
}

TEST(AResumedRun, SaysWhatDoesNotCount) {
  TestFolder folder;
  ToldInStarts told(folder.path(), 1, {{100, 130}, {200, 240}});
  const auto trace = open_trace(folder.path());
  ASSERT_NE(trace, nullptr);
  std::vector<std::string> replaced;
  for (const TraceFault& fault : trace->faults())
    if (fault.kind == TraceFault::Kind::kReplaced) replaced.push_back(fault.text);
  ASSERT_EQ(replaced.size(), 2U);
  EXPECT_THAT(replaced[0], HasSubstr("steps that 'trace.1' holds after the saved state"));
  EXPECT_THAT(replaced[1], HasSubstr("'trace.2'"));
}

TEST(AResumedRun, IsReadToItsEndWhenTheNewestStartDiedBeforeItsFirstStep) {
  TestFolder folder, reference;
  ToldInStarts told(folder.path(), 1, {{100, 130}});
  told.whole().write(reference.path());
  // Two more starts that died while their processes were made.
  for (const uint64_t number : {2, 3}) {
    fs::rename(folder.path() / "trace", folder.path() / fmt::format("trace.{}", number));
    Story start = told.whole();
    start.catalog.recovers = fmt::format("trace.{}", number);
    std::erase_if(start.frames, [](StoryFrame& frame) { return step_of(frame) != 0; });
    start.write(folder.path(), false);
  }
  const auto got = open_trace(folder.path());
  const auto wanted = open_trace(reference.path());
  ASSERT_NE(got, nullptr);
  EXPECT_EQ(got->num_starts(), 2U);
  expect_same(*got, *wanted, told.whole());
  const auto report = verify_trace(folder.path());
  ASSERT_TRUE(report.ok()) << report.error().text();
  EXPECT_TRUE(report->is_sound());
  // Opened by its own path, it is an empty trace.
  const auto empty = open_trace(folder.path() / "trace");
  ASSERT_NE(empty, nullptr);
  EXPECT_EQ(empty->last_step(GroupId(kEnv)), 0U);
}

TEST(AResumedRun, ItsStartsCanBeReadOneByOne) {
  TestFolder folder;
  ToldInStarts told(folder.path(), 1, {{100, 130}});
  const auto first = open_trace(folder.path() / "trace.1");
  EXPECT_EQ(first->num_starts(), 1U);
  EXPECT_FALSE(first->begins_with_cut());
  EXPECT_FALSE(first->is_closed());
  const auto second = open_trace(folder.path() / "trace");
  EXPECT_EQ(second->num_starts(), 1U);
  EXPECT_TRUE(second->begins_with_cut());
  EXPECT_GT(second->first_step(GroupId(kEnv)), 1U);
}

TEST(AResumedRun, BeginsWithItsSavedStateWhenTheOlderRecordIsGone) {
  TestFolder folder;
  ToldInStarts told(folder.path(), 1, {{100, 130}, {200, 240}});
  fs::remove_all(folder.path() / "trace.1");
  const auto trace = open_trace(folder.path());
  ASSERT_NE(trace, nullptr);
  EXPECT_EQ(trace->num_starts(), 2U);
  EXPECT_TRUE(trace->begins_with_cut());
  EXPECT_GT(trace->first_step(GroupId(kEnv)), 1U);
  const auto report = verify_trace(folder.path());
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->is_sound());  // it may have been removed to free space
  EXPECT_THAT(all_texts(*report), HasSubstr("the older record 'trace.1' is not there"));
}

TEST(AResumedRun, IsNotSoundWhenAnOlderStartLacksWhatTheNextNeeds) {
  const uint64_t seed = 10;  // a seed with several segments
  const size_t end = Story({.num_rounds = rounds_of(seed), .seed = seed}).frames.size();
  const auto unsound = [&](const std::function<void(const fs::path&)>& harm) {
    TestFolder folder;
    ToldInStarts told(folder.path(), seed, {{end - 3000, end - 1000}});
    EXPECT_TRUE(verify_trace(folder.path())->is_sound());
    harm(folder.path());
    const auto report = verify_trace(folder.path());
    return report.ok() && !report->is_sound();
  };
  // Removes the end of a segment that is not the last, and a whole segment.
  EXPECT_TRUE(unsound([](const fs::path& run) {
    fs::resize_file(segment_path(run / "trace.1", "main", 1, 1), 700'000);
  }));
  EXPECT_TRUE(unsound([](const fs::path& run) {
    for (uint64_t number = 2; number < 20; ++number)
      fs::remove(segment_path(run / "trace.1", "main", 1, number));
  }));
  // Removes the saved state that says where the newest start begins.
  EXPECT_TRUE(unsound([](const fs::path& run) {
    for (const auto& cut : list_cuts(run / "trace")) fs::remove(cut);
  }));
}

TEST(AResumedRun, IsReadWithoutANewestStartThatDiedAtOnce) {
  TestFolder folder;
  ToldInStarts told(folder.path(), 1, {{100, 130}});
  fs::rename(folder.path() / "trace", folder.path() / "trace.2");
  fs::create_directory(folder.path() / "trace");
  const auto trace = open_trace(folder.path());
  ASSERT_NE(trace, nullptr);
  EXPECT_EQ(trace->folder(), folder.path() / "trace.2");
  EXPECT_EQ(trace->num_starts(), 2U);
}

// Two folders that refer to each other must not be read in an endless loop.
TEST(AResumedRun, IsNotReadInACircle) {
  TestFolder folder;
  ToldInStarts told(folder.path(), 1, {{100, 130}});
  fs::remove_all(folder.path() / "trace.1");
  fs::copy(folder.path() / "trace", folder.path() / "trace.1");
  const auto folders = trace_folders(folder.path());
  ASSERT_TRUE(folders.ok()) << folders.error().text();
  EXPECT_EQ(folders->size(), 2U);
}

}  // namespace
}  // namespace primerl
