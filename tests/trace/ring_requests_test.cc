// Snapshots of a flight recorder. A snapshot has the record up to one moment, and a newer one
// replaces it. The requester gets its path, or the reason why there is none.
#include "runtime/trace/record/ring_requests.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>

#include "runtime/query/maintenance.h"
#include "runtime/trace/content_store.h"
#include "runtime/trace/read/trace.h"
#include "runtime/trace/record/payload_writer.h"
#include "tests/base/patience.h"
#include "tests/trace/segment_files.h"
#include "tests/trace/story.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

SegmentWriterOptions ring_of_four(const fs::path& folder) {
  auto options = small_segments(folder);
  options.level = TraceLevel::kRing;
  options.ring_bytes = 4 * options.segment_bytes;
  return options;
}

std::unique_ptr<SegmentWriter> open_writer(SegmentWriterOptions options) {
  take_dump_signals();
  auto writer = SegmentWriter::open(std::move(options));
  CHECK(writer.ok(), writer.error().text());
  return std::move(writer).value();
}

void append_until(SegmentWriter& writer, uint64_t& step, uint64_t last) {
  while (step < last) ASSERT_TRUE(append_delivery(writer, 0, ++step));
}

TEST(Snapshot, HoldsEverythingUpToTheMomentAndLeavesTheRingAsItWas) {
  TestFolder folder;
  const fs::path trace = folder.path() / "trace";
  const auto writer = open_writer(ring_of_four(trace));
  uint64_t step = 0;
  // A segment has space for some forty thousand steps. Many snapshots of one segment must not use
  // up the ring.
  for (uint64_t last = 100; last <= 2'000; last += 100) {
    append_until(*writer, step, last);
    const auto snapshot = writer->snapshot();
    ASSERT_TRUE(snapshot.ok()) << snapshot.error().text();
    EXPECT_EQ(snapshot->first_segment, 1U);
    EXPECT_EQ(snapshot->last_segment, 1U);
    const auto contents = read_all(trace);
    EXPECT_EQ(contents.steps.at(0), steps_to(last));
    EXPECT_TRUE(contents.damage.empty());
    EXPECT_EQ(snapshot->num_bytes, fs::file_size(segment_path(trace, "main", 1, 1)));
  }
  EXPECT_TRUE(is_snapshot(trace, "main", 1));
  ASSERT_TRUE(writer->close().ok());
  ASSERT_TRUE(writer->dump().ok());
  EXPECT_FALSE(is_snapshot(trace, "main", 1)) << "what is dumped last is the end of the record";
  EXPECT_EQ(read_all(trace).count.at(TraceFrameKind::kEnd), 1U);
}

TEST(Snapshot, TakesThePlaceOfAnOlderOneThatTheRingHasWrittenOver) {
  TestFolder folder;
  const fs::path trace = folder.path() / "trace";
  const auto writer = open_writer(ring_of_four(trace));
  uint64_t step = 0;
  for (const uint64_t last : {uint64_t{1'000}, uint64_t{300'000}, uint64_t{300'001}}) {
    append_until(*writer, step, last);
    const auto snapshot = writer->snapshot();
    ASSERT_TRUE(snapshot.ok()) << snapshot.error().text();
    const auto contents = read_all(trace);
    EXPECT_EQ(contents.numbers.front(), snapshot->first_segment);
    EXPECT_EQ(contents.numbers.back(), snapshot->last_segment);
    EXPECT_EQ(contents.numbers.size(), snapshot->last_segment - snapshot->first_segment + 1);
    const auto& steps = contents.steps.at(0);
    EXPECT_EQ(steps.back(), last);
    EXPECT_EQ(steps.back() - steps.front() + 1, steps.size());
    EXPECT_EQ(retired_through(trace, "main", 1), snapshot->first_segment - 1);
  }
  EXPECT_GT(read_all(trace).numbers.front(), 1U);
}

TEST(Snapshot, KeepsTheBlobsItNamesUntilAnotherTakesItsPlace) {
  TestFolder folder;
  const fs::path trace = folder.path() / "trace";
  const auto writer = open_writer(ring_of_four(trace));
  const auto append_large = [&](uint64_t content) {
    std::vector<std::byte> bytes(kInlineBytesMax + 1);
    std::memcpy(bytes.data(), &content, sizeof content);
    const Blob blob(std::move(bytes));
    PayloadFrame frame = {};
    frame.step = frame.sequence = content;
    std::vector<std::byte> scratch;
    return append_payload(*writer, frame, {}, std::span(&blob, 1), scratch);
  };
  uint64_t step = 0;
  ASSERT_TRUE(append_large(1));
  ASSERT_TRUE(writer->snapshot().ok());
  append_until(*writer, step, 300'000);  // over the first segment and further
  const auto verified = verify_trace(trace);
  ASSERT_TRUE(verified.ok());
  EXPECT_EQ(verified->num_blobs, 1U);
  for (const auto& fault : verified->faults)
    EXPECT_NE(fault.kind, TraceFault::Kind::kMissingBlob) << fault.text;
  ASSERT_TRUE(append_large(2));
  ASSERT_TRUE(writer->snapshot().ok());
  EXPECT_EQ(ContentStore(trace / "blobs").list()->size(), 1U) << "the first one has gone";
  EXPECT_EQ(verify_trace(trace)->num_blobs, 1U);
}

// The threads' records depend on each other, in both directions.
TEST(Snapshot, NeverHoldsAnEffectWithoutItsCause) {
  TestFolder folder;
  const fs::path trace = folder.path() / "trace";
  const auto writer = open_writer(ring_of_four(trace));
  std::atomic<uint64_t> newest[2] = {0, 0};
  std::atomic<bool> stops = false;
  const auto record = [&](uint32_t group) {
    for (uint64_t step = 1; !stops.load(); ++step) {
      // Each thread is at most one step ahead of the other.
      while (newest[1 - group].load() + 1 < step)
        if (stops.load()) return;
      ASSERT_TRUE(append_delivery(*writer, group, step));
      newest[group].store(step);
    }
  };
  std::thread first(record, 0), second(record, 1);
  for (int i = 0; i < 30; ++i) {
    const uint64_t before = std::min(newest[0].load(), newest[1].load());
    const auto snapshot = writer->snapshot();
    EXPECT_TRUE(snapshot.ok());
    const auto contents = read_all(trace);
    EXPECT_TRUE(contents.damage.empty()) << "a frame that was being written is left out";
    if (contents.steps.size() < 2) continue;
    const uint64_t a = contents.steps.at(0).back(), b = contents.steps.at(1).back();
    EXPECT_LE(std::max(a, b) - std::min(a, b), 1U);
    EXPECT_GE(std::min(a, b), before);
  }
  stops = true;
  first.join();
  second.join();
}

TEST(Snapshot, IsForFlightRecordersOnly) {
  TestFolder folder;
  const auto writer = open_writer(small_segments(folder.path() / "trace"));
  const auto snapshot = writer->snapshot();
  ASSERT_FALSE(snapshot.ok());
  EXPECT_THAT(snapshot.error().text(), HasSubstr("only a flight recorder"));
}

TEST(Snapshot, IsKnownForOneByWhoReadsTheTrace) {
  TestFolder folder;
  const fs::path run = folder.path();
  auto options = ring_of_four(run / "trace");
  options.catalog = story::story_catalog().to_json().dump();
  const auto writer = open_writer(std::move(options));
  story::tell(
      {}, [&](story::StoryFrame& frame) { ASSERT_TRUE(writer->append(frame.head, frame.tail)); });
  ASSERT_TRUE(writer->snapshot().ok());
  const auto kinds = [&] {
    std::vector<TraceFault::Kind> found;
    const auto trace = Trace::open(run).value();
    for (const auto& fault : trace->faults()) found.push_back(fault.kind);
    return found;
  };
  EXPECT_THAT(kinds(), testing::Contains(TraceFault::Kind::kSnapshot));
  ASSERT_TRUE(writer->dump().ok());
  EXPECT_THAT(kinds(), testing::Not(testing::Contains(TraceFault::Kind::kSnapshot)));
}

TEST(RingRequests, AreAnsweredWhileTheProcessRecordsOn) {
  TestFolder folder;
  const fs::path trace = folder.path() / "trace";
  const auto writer = open_writer(ring_of_four(trace));
  uint64_t step = 0;
  append_until(*writer, step, 1'000);
  auto requests = RingRequests::open(*writer, trace, "main", 1);
  ASSERT_TRUE(requests.ok()) << requests.error().text();
  for (const uint64_t last : {uint64_t{1'000}, uint64_t{2'000}}) {
    append_until(*writer, step, last);
    const auto dumped = request_dump(trace, kPatience);
    ASSERT_TRUE(dumped.ok()) << dumped.error().text();
    ASSERT_EQ(dumped->size(), 1U);
    EXPECT_EQ(dumped->front().process, "main");
    EXPECT_EQ(dumped->front().pid, ::getpid());
    EXPECT_EQ(dumped->front().snapshot.last_segment, 1U);
    EXPECT_EQ(read_all(trace).steps.at(0), steps_to(last)) << "not an older answer";
  }
  requests->reset();
  const auto late = request_dump(trace, kPatience);
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code(), Code::kNotFound);
}

TEST(RingRequests, LeaveNoFilesWithoutARequest) {
  TestFolder folder;
  const fs::path trace = folder.path() / "trace";
  const auto writer = open_writer(ring_of_four(trace));
  auto requests = RingRequests::open(*writer, trace, "main", 1);
  ASSERT_TRUE(requests.ok()) << requests.error().text();
  EXPECT_TRUE(fs::exists(trace));
  requests->reset();
  EXPECT_FALSE(fs::exists(trace));
}

TEST(RingRequests, ToAProcessThatDiedSaySo) {
  TestFolder folder;
  const fs::path trace = folder.path() / "trace";
  const pid_t child = ::fork();
  if (child == 0) {
    const auto writer = open_writer(ring_of_four(trace));
    const auto requests = RingRequests::open(*writer, trace, "main", 1);
    ::kill(::getpid(), SIGKILL);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ASSERT_TRUE(fs::exists(trace / "main.1.live")) << "its process id may be another's by now";
  const auto dumped = request_dump(trace, kPatience);
  ASSERT_FALSE(dumped.ok());
  EXPECT_THAT(dumped.error().text(), HasSubstr("no process records into memory"));
}

/// Locks the file like a recorder and never answers; the signal must do it no harm.
TEST(RingRequests, WithoutAnAnswerEndAtTheDeadline) {
  TestFolder folder;
  const fs::path trace = folder.path() / "trace";
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto writer = open_writer(ring_of_four(trace));
    const auto requests = RingRequests::open(*writer, trace, "main", 1);
    // An answer that cannot be written counts as missing.
    ::mkdir((trace / "main.1.dump.tmp").c_str(), 0700);
    (void)!::write(ready[1], "x", 1);
    while (true) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const auto dumped = request_dump(trace, Duration::milliseconds(50));
  EXPECT_EQ(::waitpid(child, nullptr, WNOHANG), 0) << "it lives on";
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ASSERT_FALSE(dumped.ok());
  EXPECT_EQ(dumped.error().code(), Code::kDeadline);
  EXPECT_THAT(dumped.error().text(), AllOf(HasSubstr("process 'main'"), HasSubstr("50ms")));
  for (const int end : ready) ::close(end);
}

TEST(RingRequests, ReportWhyASnapshotCannotBeWritten) {
  TestFolder folder;
  const fs::path trace = folder.path() / "trace";
  const auto writer = open_writer(ring_of_four(trace));
  const auto requests = RingRequests::open(*writer, trace, "main", 1);
  fs::create_directory(trace / "main.1.1.ptr.tmp");  // blocks the name of the segment
  const auto dumped = request_dump(trace, kPatience);
  ASSERT_FALSE(dumped.ok());
  EXPECT_EQ(dumped.error().code(), Code::kUnavailable);
  EXPECT_THAT(dumped.error().text(), HasSubstr("process 'main' could not write its dump"));
}

TEST(RingRequests, AreNotSentToAnotherMachineNorToAnyNumber) {
  TestFolder folder;
  const fs::path trace = folder.path() / "trace";
  const auto writer = open_writer(ring_of_four(trace));
  const auto requests = RingRequests::open(*writer, trace, "main", 1);
  const auto ask_with = [&](const std::string& live) {
    std::ofstream(trace / "main.1.live", std::ios::trunc) << live;
    const auto dumped = request_dump(trace, kPatience);
    return dumped.ok() ? "answered" : dumped.error().text();
  };
  EXPECT_THAT(
      ask_with(R"({"process":"main","incarnation":1,"pid":4711,"host":"elsewhere.invalid"})"),
      HasSubstr("is on the machine 'elsewhere.invalid'"));
  for (const char* pid : {"0", "1", "-1", "-4711", "4294967296"})
    EXPECT_THAT(
        ask_with(fmt::format(R"({{"process":"main","incarnation":1,"pid":{},"host":""}})", pid)),
        HasSubstr("names process"));
  EXPECT_THAT(ask_with("{"), HasSubstr("main.1.live"));
}

}  // namespace
}  // namespace primerl
