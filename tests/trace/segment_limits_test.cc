// The writer without free space: it blocks, counts, or fails once. And which old data is kept.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "runtime/query/maintenance.h"
#include "runtime/trace/content_store.h"
#include "runtime/trace/payload_frame.h"
#include "runtime/trace/record/payload_writer.h"
#include "runtime/trace/record/sealed_segments.h"
#include "runtime/trace/segment_reader.h"
#include "runtime/wire/frame.h"
#include "tests/trace/segment_files.h"

namespace primerl {
namespace {

/// Lowers a limit of this process while it exists: then no file can be opened, or none can grow.
class LowerLimit {
 public:
  LowerLimit(__rlimit_resource which, rlim_t limit) : which_(which) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(which_, &before_);
    const rlimit lower{.rlim_cur = limit, .rlim_max = before_.rlim_max};
    ::setrlimit(which_, &lower);
  }
  ~LowerLimit() { ::setrlimit(which_, &before_); }

 private:
  const __rlimit_resource which_;
  rlimit before_{};
};

constexpr uint64_t kStepsOfFourSegments = 50'000;  // more than all segments prepared in advance

std::vector<uint64_t> steps_in(const std::vector<GapFrame>& gaps) {
  std::vector<uint64_t> steps;
  for (const auto& gap : gaps)
    for (uint64_t step = gap.first_step; step <= gap.last_step; ++step) steps.push_back(step);
  return steps;
}

TEST(SegmentWriter, CountsWhatItCannotWriteAndSaysSoInAGap) {
  TestFolder folder;
  auto options = small_segments(folder.path());
  options.full = TraceFull::kGap;
  auto writer = SegmentWriter::open(options);
  ASSERT_TRUE(writer.ok());
  uint64_t step = 0;
  std::vector<uint64_t> written, lost;
  const auto append_next = [&] {
    const bool is_written = append_delivery(**writer, 5, ++step);
    (is_written ? written : lost).push_back(step);
    return is_written;
  };
  {
    const LowerLimit no_more_files(RLIMIT_NOFILE, 0);
    while (step < kStepsOfFourSegments) append_next();
  }
  ASSERT_FALSE(lost.empty());
  while (!append_next()) std::this_thread::yield();
  ASSERT_TRUE((*writer)->close().ok()) << (*writer)->fault().error().text();
  EXPECT_EQ((*writer)->num_lost(), lost.size());
  const auto contents = read_all(folder.path());
  EXPECT_EQ(contents.steps.at(5), written);
  // More than one gap if a segment that was opened before the limit arrived late.
  ASSERT_FALSE(contents.gaps.empty());
  EXPECT_EQ(steps_in(contents.gaps), lost);
  uint64_t num_lost = 0;
  for (const auto& gap : contents.gaps) {
    EXPECT_EQ(gap.header.group, 5U);
    num_lost += gap.num_lost;
  }
  EXPECT_EQ(num_lost, lost.size());
}

TEST(SegmentWriter, WritesTheGapAtTheEndWhenNothingElseComes) {
  TestFolder folder;
  auto options = small_segments(folder.path());
  options.full = TraceFull::kGap;
  auto writer = SegmentWriter::open(options);
  ASSERT_TRUE(writer.ok());
  uint64_t last = 0;
  bool is_lost = false;
  {
    // Segments that were opened before may still arrive; when they are full, no more frames fit.
    const LowerLimit no_more_files(RLIMIT_NOFILE, 0);
    while (last < kStepsOfFourSegments || (!is_lost && last < 10 * kStepsOfFourSegments))
      is_lost = !append_delivery(**writer, 0, ++last);
  }
  ASSERT_TRUE(is_lost);
  ASSERT_TRUE((*writer)->close().ok());
  const auto contents = read_all(folder.path());
  ASSERT_FALSE(contents.gaps.empty());
  EXPECT_EQ(contents.gaps.back().last_step, last);
  // Each step is either recorded or in a gap, once.
  std::vector<uint64_t> told = contents.steps.at(0);
  const auto lost = steps_in(contents.gaps);
  told.insert(told.end(), lost.begin(), lost.end());
  std::sort(told.begin(), told.end());
  EXPECT_EQ(told, steps_to(last));
}

TEST(SegmentWriter, LosesAFrameThatIsTooLargeAndOnlyThat) {
  TestFolder folder;
  auto writer = SegmentWriter::open(small_segments(folder.path()));
  ASSERT_TRUE(writer.ok());
  const size_t largest = kFrameBytesMax - sizeof(NoteFrame);
  EXPECT_TRUE(append_note(**writer, 1, 1, std::string(largest, 'x')));
  EXPECT_FALSE(append_note(**writer, 1, 2, std::string(largest + 1, 'x')));
  EXPECT_TRUE(append_delivery(**writer, 1, 3));
  ASSERT_TRUE((*writer)->close().ok());
  const auto contents = read_all(folder.path());
  EXPECT_EQ(contents.count.at(TraceFrameKind::kNote), 1U);
  ASSERT_EQ(contents.gaps.size(), 1U);
  EXPECT_EQ(contents.gaps[0].first_step, 2U);
  EXPECT_EQ(contents.gaps[0].last_step, 2U);
}

TEST(SegmentWriter, BlocksUntilThereIsRoomAndLosesNothing) {
  TestFolder folder;
  auto writer = SegmentWriter::open(small_segments(folder.path()));
  ASSERT_TRUE(writer.ok());
  std::atomic<uint64_t> progress = 0;
  bool is_whole = true;
  std::atomic<bool> begins = false;
  // Created before the limit is lowered, because sanitizers open a file to read its type.
  std::jthread appends([&] {
    while (!begins.load()) std::this_thread::yield();
    for (uint64_t step = 1; step <= kStepsOfFourSegments; ++step) {
      is_whole = is_whole && append_delivery(**writer, 0, step);
      progress.store(step);
    }
  });
  {
    const LowerLimit no_more_files(RLIMIT_NOFILE, 0);
    begins = true;
    while (progress.load() < 11'000) std::this_thread::yield();  // of 11'700 in one segment
  }
  appends.join();
  EXPECT_TRUE(is_whole);
  ASSERT_TRUE((*writer)->close().ok());
  EXPECT_EQ(read_all(folder.path()).steps.at(0), steps_to(kStepsOfFourSegments));
}

TEST(SegmentWriter, FailsOnceItHasBlockedTooLong) {
  TestFolder folder;
  auto options = small_segments(folder.path());
  options.block_max = Duration::milliseconds(30);
  auto writer = SegmentWriter::open(options);
  ASSERT_TRUE(writer.ok());
  uint64_t step = 0;
  {
    const LowerLimit no_more_files(RLIMIT_NOFILE, 0);
    while (step < kStepsOfFourSegments && append_delivery(**writer, 0, step + 1)) ++step;
    ASSERT_LT(step, kStepsOfFourSegments);
  }
  EXPECT_FALSE(append_delivery(**writer, 0, step + 2)) << "a failed trace does not begin again";
  const std::string text = (*writer)->fault().error().text();
  EXPECT_TRUE(text.starts_with("the trace is no longer written: creating '")) << text;
  EXPECT_NE(text.find("Too many open files"), std::string::npos) << text;
  EXPECT_EQ((*writer)->close().error().text(), text);
  EXPECT_EQ((*writer)->num_lost(), 2U);
  EXPECT_EQ(read_all(folder.path()).steps.at(0), steps_to(step)) << "what was written stays";
}

TEST(SegmentWriter, FailsAtOnceIfItWaitsForADiskWhenTheRunIsStopped) {
  TestFolder folder;
  auto options = small_segments(folder.path());
  options.block_max = Duration::seconds(86'400);  // longer than the test may take
  auto writer = SegmentWriter::open(options);
  ASSERT_TRUE(writer.ok());
  std::atomic<uint64_t> steps = 0;
  std::jthread stops([&] {
    while (steps.load() < 11'000) std::this_thread::yield();  // of 11'700 in one segment
    (*writer)->stop_waiting();
  });
  const LowerLimit no_more_files(RLIMIT_NOFILE, 0);
  while (append_delivery(**writer, 0, steps.load() + 1)) ++steps;
  EXPECT_FALSE((*writer)->close().ok());
  EXPECT_LT(steps.load(), kStepsOfFourSegments);
}

TEST(SegmentWriter, WritesNothingThatCameAfterItsFault) {
  TestFolder folder;
  auto writer = SegmentWriter::open(small_segments(folder.path()));
  ASSERT_TRUE(writer.ok());
  for (uint64_t step = 1; step <= 10; ++step)
    for (const uint32_t group : {0U, 1U}) ASSERT_TRUE(append_delivery(**writer, group, step));
  const DeliveryFrame lost = delivery(0, 11);
  EXPECT_FALSE((*writer)->lose(std::as_bytes(std::span(&lost, 1)),
                               error(Code::kIo, "no payload can be stored")));
  EXPECT_FALSE(append_delivery(**writer, 0, 12)) << "there is room, but it would leave a hole";
  EXPECT_FALSE(append_delivery(**writer, 1, 11));
  EXPECT_FALSE((*writer)->close().ok());
  EXPECT_EQ((*writer)->num_lost(), 3U);
  const auto contents = read_all(folder.path());
  EXPECT_TRUE(contents.damage.empty());
  for (const uint32_t group : {0U, 1U}) EXPECT_EQ(contents.steps.at(group), steps_to(10));
}

TEST(SegmentWriter, SaysOnceThatTheDiskIsFull) {
  TestFolder folder;
  auto writer = SegmentWriter::open(small_segments(folder.path()));
  ASSERT_TRUE(writer.ok());
  uint64_t step = 0;
  {
    const LowerLimit no_larger_files(RLIMIT_FSIZE, 1 << 20);
    while (step < kStepsOfFourSegments && append_delivery(**writer, 0, step + 1)) ++step;
  }
  ASSERT_LT(step, kStepsOfFourSegments);
  const std::string text = (*writer)->fault().error().text();
  EXPECT_NE(text.find("allocating '"), std::string::npos) << text;
  EXPECT_NE(text.find("free some space"), std::string::npos) << text;
  EXPECT_FALSE((*writer)->close().ok());
  EXPECT_EQ(read_all(folder.path()).steps.at(0), steps_to(step)) << "no half segment is left";
}

TEST(SegmentWriter, SaysWhatIsWrongWithItsFolder) {
  TestFolder folder;
  write_bytes(folder.path() / "file", {});
  const auto refused = SegmentWriter::open(small_segments(folder.path() / "file" / "trace"));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().text().find("Not a directory"), std::string::npos);

  auto writer = SegmentWriter::open(small_segments(folder.path() / "trace"));
  ASSERT_TRUE(writer.ok());
  // At once, because the writer may be creating its next file there.
  std::filesystem::rename(folder.path() / "trace", folder.path() / "gone");
  uint64_t step = 0;
  while (step < 10 * kStepsOfFourSegments && append_delivery(**writer, 0, ++step)) {
  }
  EXPECT_LT(step, 10 * kStepsOfFourSegments);
  EXPECT_FALSE((*writer)->close().ok());
}

TEST(SealedSegments, RetiresTheOldestOnePastTheLimitAndNoneThatIsNeeded) {
  TestFolder folder;
  const std::vector<std::byte> content(100);
  const auto run = [&](uint64_t count, uint64_t keep_from) {
    for (uint64_t number = 1; number <= count; ++number)
      write_bytes(segment_path(folder.path(), "main", 1, number), content);
    SealedSegments sealed({.folder = folder.path(),
                           .process = "main",
                           .incarnation = 1,
                           .bytes_max = 300,
                           .packs = false,
                           .keep_from = [keep_from] { return keep_from; }});
    for (uint64_t number = 1; number <= count; ++number) sealed.add(number, content.size());
    sealed.finish(Duration::seconds(60));
    std::vector<uint64_t> numbers;
    const auto files = list_segments(folder.path());
    for (const auto& file : *files) numbers.push_back(file.number);
    return numbers;
  };
  EXPECT_EQ(run(3, 9), (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(retired_through(folder.path(), "main", 1), 0U);
  EXPECT_EQ(run(4, 9), (std::vector<uint64_t>{2, 3, 4}));
  EXPECT_EQ(retired_through(folder.path(), "main", 1), 1U);
  EXPECT_EQ(run(7, 2), (std::vector<uint64_t>{2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(run(7, 1), (std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(run(7, 9), (std::vector<uint64_t>{5, 6, 7}));
  EXPECT_EQ(retired_through(folder.path(), "main", 1), 4U);
}

TEST(SegmentWriter, KeepsItsTraceBelowTheLimit) {
  TestFolder folder;
  auto options = small_segments(folder.path());
  options.trace_bytes_max = 3 * options.segment_bytes;
  auto writer = SegmentWriter::open(options);
  ASSERT_TRUE(writer.ok());
  const uint64_t num_steps = 130'000;  // eleven segments
  for (uint64_t step = 1; step <= num_steps; ++step)
    ASSERT_TRUE(append_delivery(**writer, 0, step));
  ASSERT_TRUE((*writer)->close().ok());
  const auto contents = read_all(folder.path());
  EXPECT_LE(contents.numbers.size(), 4U);
  EXPECT_GE(contents.numbers.size(), 3U);
  EXPECT_EQ(retired_through(folder.path(), "main", 1), contents.numbers.front() - 1);
  const auto& steps = contents.steps.at(0);
  EXPECT_EQ(steps.back(), num_steps);
  EXPECT_EQ(steps.back() - steps.front() + 1, steps.size());
}

/// A payload frame with one Blob of kInlineBytesMax + 1 bytes that begin with `content`.
bool append_large(SegmentWriter& writer, uint64_t step, uint64_t content) {
  std::vector<std::byte> bytes(kInlineBytesMax + 1);
  std::memcpy(bytes.data(), &content, sizeof content);
  const Blob blob(std::move(bytes));
  PayloadFrame frame = {};
  frame.step = step;
  frame.sequence = step;
  std::vector<std::byte> scratch;
  return append_payload(writer, frame, {}, std::span(&blob, 1), scratch);
}

/// The parts of a payload with these Blobs after reading it back.
std::vector<PayloadParts::Part> blobs_read_back(const std::vector<Blob>& blobs, size_t body_bytes,
                                                const std::filesystem::path& folder) {
  auto options = small_segments(folder);
  options.segment_bytes = uint64_t{4} << 20;
  auto writer = SegmentWriter::open(options);
  EXPECT_TRUE(writer.ok());
  PayloadFrame frame = {};
  frame.step = frame.sequence = 1;
  std::vector<std::byte> scratch;
  const std::vector<std::byte> body(body_bytes, std::byte{7});
  EXPECT_TRUE(append_payload(**writer, frame, body, blobs, scratch));
  EXPECT_EQ((*writer)->num_lost(), 0U);
  EXPECT_TRUE((*writer)->close().ok());
  const auto verified = verify_trace(folder);
  EXPECT_TRUE(verified.ok());
  for (const auto& fault : verified->faults) EXPECT_FALSE(fault.is_fault()) << fault.text;
  std::vector<PayloadParts::Part> parts;
  const auto reader = SegmentReader::open(segment_path(folder, "main", 1, 1)).value();
  const ContentStore store(folder / "blobs", false);
  for (auto found = reader->next(0); found;
       found = reader->next(SegmentReader::next_offset(*found))) {
    if (found->kind() != TraceFrameKind::kPayload) continue;
    parts = payload_parts(*found)->blobs;
    for (size_t i = 0; i < parts.size() && i < blobs.size(); ++i) {
      std::vector<std::byte> bytes(parts[i].bytes.begin(), parts[i].bytes.end());
      ContentHash hash{};
      if (parts[i].in_store) {
        std::copy(bytes.begin(), bytes.end(), hash.begin());
        bytes = store.load(hash).value();
      }
      EXPECT_EQ(Blob(std::move(bytes)), blobs[i]) << i;
    }
  }
  EXPECT_EQ(parts.size(), blobs.size());
  return parts;
}

uint64_t num_stored(const std::vector<PayloadParts::Part>& parts) {
  return static_cast<uint64_t>(
      std::count_if(parts.begin(), parts.end(), [](const auto& part) { return part.in_store; }));
}

std::vector<Blob> blobs_of(size_t count, size_t num_bytes) {
  std::vector<Blob> blobs;
  for (size_t i = 0; i < count; ++i) {
    std::vector<std::byte> bytes(num_bytes);
    const uint64_t content = i % 16;
    std::memcpy(bytes.data(), &content, std::min(num_bytes, sizeof content));
    blobs.emplace_back(std::move(bytes));
  }
  return blobs;
}

// Number of Blobs of 1016 bytes, with their words, that fit into a frame after a body of 8 bytes.
constexpr size_t kBlobsOfAFrame = (kFrameBytesMax - sizeof(PayloadFrame) - 8) / 1024;

TEST(SegmentWriter, KeepsBlobsInAFrameAsLongAsAllOfThemFit) {
  TestFolder at_the_limit, one_past_it;
  EXPECT_EQ(num_stored(blobs_read_back(blobs_of(kBlobsOfAFrame, 1016), 8, at_the_limit.path())),
            0U);
  EXPECT_EQ(num_stored(blobs_read_back(blobs_of(kBlobsOfAFrame + 1, 1016), 8, one_past_it.path())),
            kBlobsOfAFrame + 1);
}

TEST(SegmentWriter, StoresTheLargestBlobsOfAMessageThatIsTooLongForAFrame) {
  TestFolder folder;
  auto blobs = blobs_of(15, kInlineBytesMax);
  for (auto& small : blobs_of(200, 1000)) blobs.push_back(std::move(small));
  const auto parts = blobs_read_back(blobs, 8, folder.path());
  EXPECT_EQ(num_stored(parts), 15U);
  for (size_t i = 0; i < 15; ++i) EXPECT_TRUE(parts[i].in_store);
}

TEST(SegmentWriter, LosesNoMessageHoweverManyBlobsItHas) {
  TestFolder folder;
  const size_t most = kFrameCountMax - kFrameCountMin;
  EXPECT_EQ(num_stored(blobs_read_back(blobs_of(most, 100), kInlineBytesMax, folder.path())), most);
}

/// The stored blobs and the blobs that segments refer to must be the same.
void expect_blobs_are_those_named(const std::filesystem::path& folder, uint64_t num_blobs) {
  const auto verified = verify_trace(folder);
  ASSERT_TRUE(verified.ok());
  for (const auto& fault : verified->faults) EXPECT_FALSE(fault.is_fault()) << fault.text;
  EXPECT_EQ(verified->num_blobs, num_blobs);
  EXPECT_EQ(ContentStore(folder / "blobs").list()->size(), num_blobs);
}

TEST(SegmentWriter, RemovesABlobWithTheLastSegmentThatNamedIt) {
  TestFolder folder;
  auto options = small_segments(folder.path());
  options.trace_bytes_max = 3 * options.segment_bytes;
  auto writer = SegmentWriter::open(options);
  ASSERT_TRUE(writer.ok());
  const uint64_t num_steps = 130'000;  // eleven segments
  constexpr uint64_t kOfAll = 1'000'000;
  uint64_t num_stored = 0;
  for (uint64_t step = 1; step <= num_steps; ++step) {
    ASSERT_TRUE(append_delivery(**writer, 0, step));
    if (step % 10'000 != 0) continue;
    ASSERT_TRUE(append_large(**writer, step, step));
    ASSERT_TRUE(append_large(**writer, step, kOfAll)) << "one that every segment names";
    ++num_stored;
  }
  ASSERT_TRUE((*writer)->close().ok());
  uint64_t num_named = 1;
  const uint64_t first = read_all(folder.path()).steps.at(0).front();
  for (uint64_t step = 10'000; step <= num_steps; step += 10'000) num_named += step >= first;
  EXPECT_LT(num_named, num_stored);
  expect_blobs_are_those_named(folder.path(), num_named);
}

TEST(SegmentWriter, LeavesABlobThatAnotherProcessNames) {
  TestFolder folder;
  auto options = small_segments(folder.path());
  auto other = SegmentWriter::open(options);
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(append_large(**other, 1, 7));
  options.process = "other";
  options.process_index = 1;
  options.trace_bytes_max = 0;
  auto writer = SegmentWriter::open(options);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(append_large(**writer, 1, 7));
  ASSERT_TRUE(append_large(**writer, 1, 8));
  for (uint64_t step = 1; step <= kStepsOfFourSegments; ++step)
    ASSERT_TRUE(append_delivery(**writer, 0, step));
  ASSERT_TRUE((*writer)->close().ok());
  ASSERT_TRUE((*other)->close().ok());
  expect_blobs_are_those_named(folder.path(), 1);
}

TEST(SegmentWriter, TheFlightRecorderForgetsBlobsToo) {
  TestFolder folder;
  auto options = small_segments(folder.path() / "trace");
  options.level = TraceLevel::kRing;
  options.ring_bytes = 4 * options.segment_bytes;
  auto writer = SegmentWriter::open(options);
  ASSERT_TRUE(writer.ok());
  for (uint64_t step = 1; step <= 200'000; ++step) {
    ASSERT_TRUE(append_delivery(**writer, 0, step));
    if (step % 10'000 == 0) {
      ASSERT_TRUE(append_large(**writer, step, step));
    }
  }
  ASSERT_TRUE((*writer)->close().ok());
  ASSERT_TRUE((*writer)->dump().ok());
  const auto verified = verify_trace(folder.path() / "trace");
  ASSERT_TRUE(verified.ok());
  EXPECT_LT(verified->num_blobs, 20U);
  const auto there = ContentStore(folder.path() / "trace" / "blobs").list();
  // There may be more blobs: those of segments that were prepared for reuse.
  EXPECT_GE(there->size(), verified->num_blobs);
  EXPECT_LT(there->size(), 20U);
  for (const auto& fault : verified->faults)
    EXPECT_NE(fault.kind, TraceFault::Kind::kMissingBlob) << fault.text;
}

TEST(SegmentWriter, TheFlightRecorderKeepsTheLastBytesAndWritesThemWhenAsked) {
  TestFolder folder;
  auto options = small_segments(folder.path() / "trace");
  options.level = TraceLevel::kRing;
  options.ring_bytes = 4 * options.segment_bytes;
  auto writer = SegmentWriter::open(options);
  ASSERT_TRUE(writer.ok());
  uint64_t step = 0;
  const auto append_until = [&](uint64_t last) {
    while (step < last) ASSERT_TRUE(append_delivery(**writer, 0, ++step));
  };
  append_until(200'000);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "trace"));
  for (const uint64_t last : {uint64_t{200'000}, uint64_t{200'001}, uint64_t{400'000}}) {
    append_until(last);
    std::filesystem::remove_all(folder.path() / "trace");
    ASSERT_TRUE((*writer)->dump().ok());
    const auto contents = read_all(folder.path() / "trace");
    const auto& steps = contents.steps.at(0);
    EXPECT_EQ(steps.back(), last);
    EXPECT_EQ(steps.back() - steps.front() + 1, steps.size());
    EXPECT_GE(contents.numbers.size(), 3U);
    EXPECT_EQ(retired_through(folder.path() / "trace", "main", 1), contents.numbers.front() - 1);
  }
  ASSERT_TRUE((*writer)->close().ok());
  ASSERT_TRUE((*writer)->dump().ok());
  EXPECT_EQ(read_all(folder.path() / "trace").count.at(TraceFrameKind::kEnd), 1U);
}

}  // namespace
}  // namespace primerl
