#include "runtime/trace/record/segment_writer.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <thread>

#include "tests/trace/segment_files.h"

namespace primerl {
namespace {

TEST(SegmentWriter, RefusesSegmentsThatAreTooSmallOrThereAlready) {
  TestFolder folder;
  auto options = small_segments(folder.path());
  options.segment_bytes = 4096;
  EXPECT_EQ(SegmentWriter::open(options).error().code(), Code::kInvalid);
  options = small_segments(folder.path());
  { ASSERT_TRUE(SegmentWriter::open(options).ok()); }
  EXPECT_EQ(SegmentWriter::open(options).error().code(), Code::kExists);
  options.incarnation = 2;
  EXPECT_TRUE(SegmentWriter::open(options).ok());
}

TEST(SegmentWriter, AppendedFramesAreReadInOrderOverManySegments) {
  TestFolder folder;
  auto writer = SegmentWriter::open(small_segments(folder.path()));
  ASSERT_TRUE(writer.ok());
  const uint64_t num_steps = 60'000;  // five segments
  for (uint64_t step = 1; step <= num_steps; ++step)
    ASSERT_TRUE(append_delivery(**writer, 3, step));
  ASSERT_TRUE((*writer)->close().ok());
  const auto contents = read_all(folder.path());
  EXPECT_EQ(contents.steps.at(3), steps_to(num_steps));
  EXPECT_EQ(contents.numbers, steps_to(contents.numbers.size()));
  EXPECT_GE(contents.numbers.size(), 5U);
  EXPECT_EQ(contents.count.at(TraceFrameKind::kCatalog), contents.numbers.size());
  EXPECT_EQ(contents.count.at(TraceFrameKind::kEnd), 1U);
  EXPECT_GE(contents.count.at(TraceFrameKind::kSync), num_steps * 96 / kSyncEveryBytes - 10);
  EXPECT_TRUE(contents.damage.empty());
  struct stat status {};
  ASSERT_EQ(::stat(folder.path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700U);
}

// A process that is being stopped still waits for the next segment of a disk with space.
TEST(SegmentWriter, IsWholeOnADiskWithSpaceAlsoWhenTheRunIsStopped) {
  TestFolder folder;
  auto writer = SegmentWriter::open(small_segments(folder.path()));
  ASSERT_TRUE(writer.ok());
  (*writer)->stop_waiting();
  constexpr uint64_t kSteps = 50'000;  // more than the segments that are prepared ahead
  for (uint64_t step = 1; step <= kSteps; ++step) ASSERT_TRUE(append_delivery(**writer, 0, step));
  ASSERT_TRUE((*writer)->close().ok());
  EXPECT_EQ(read_all(folder.path()).steps.at(0), steps_to(kSteps));
}

TEST(SegmentWriter, EightThreadsLoseNothingAndKeepTheOrderOfEachHost) {
  TestFolder folder;
  auto options = small_segments(folder.path());
  options.packs = true;
  auto writer = SegmentWriter::open(options);
  ASSERT_TRUE(writer.ok());
  const uint64_t num_steps = 100'000;
  {
    std::vector<std::jthread> threads;
    for (uint32_t group = 0; group < 8; ++group)
      threads.emplace_back([&, group] {
        for (uint64_t step = 1; step <= num_steps; ++step)
          if (!append_delivery(**writer, group, step)) return;
      });
  }
  ASSERT_TRUE((*writer)->close().ok()) << (*writer)->fault().error().text();
  const auto contents = read_all(folder.path());
  for (uint32_t group = 0; group < 8; ++group)
    EXPECT_EQ(contents.steps.at(group), steps_to(num_steps));
  EXPECT_TRUE(contents.damage.empty());
  const auto files = list_segments(folder.path());
  ASSERT_TRUE(files.ok());
  for (const auto& file : *files) EXPECT_TRUE(file.is_packed);
}

}  // namespace
}  // namespace primerl
