#include "runtime/query/maintenance.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>

#include "graph/base/random.h"
#include "runtime/trace/content_store.h"
#include "tests/trace/segment_files.h"

namespace primerl {
namespace {

using Kind = TraceFault::Kind;

constexpr uint64_t kSteps = 30'000;  // three segments

// A closed trace of three segments and a blob.
void write_trace(const std::filesystem::path& folder, bool is_closed = true) {
  auto writer = SegmentWriter::open(small_segments(folder));
  ASSERT_TRUE(writer.ok());
  for (uint64_t step = 1; step <= kSteps; ++step) ASSERT_TRUE(append_delivery(**writer, 0, step));
  const std::string text(100'000, 'w');
  const auto hash = (*writer)->store(std::as_bytes(std::span(text)));
  ASSERT_TRUE(hash.ok());
  PayloadFrame frame{};
  frame.header.kind = static_cast<uint8_t>(TraceFrameKind::kPayload);
  frame.header.flags = kBodyInStore;
  frame.body_bytes = static_cast<uint32_t>(text.size());
  ASSERT_TRUE((*writer)->append(std::as_writable_bytes(std::span(&frame, 1)), *hash));
  if (is_closed) {
    ASSERT_TRUE((*writer)->close().ok());
  }
}

std::vector<Kind> kinds_of(const std::filesystem::path& folder) {
  const auto report = verify_trace(folder);
  EXPECT_TRUE(report.ok()) << report.error().text();
  std::vector<Kind> kinds;
  for (const auto& fault : report->faults) kinds.push_back(fault.kind);
  return kinds;
}

void flip(const std::filesystem::path& file, uint64_t offset) {
  auto bytes = file_bytes(file);
  bytes.at(offset) ^= std::byte{1};
  write_bytes(file, bytes);
}

TEST(VerifyTrace, SaysWhereThereIsNone) {
  TestFolder folder;
  EXPECT_EQ(verify_trace(folder.path()).error().code(), Code::kNotFound);
  EXPECT_EQ(verify_trace(folder.path() / "none").error().code(), Code::kNotFound);
}

TEST(VerifyTrace, CountsEverythingOfASoundTraceFoundByItsRunFolder) {
  TestFolder folder;
  write_trace(folder.path() / "trace");
  const auto report = verify_trace(folder.path());
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->is_sound() && report->is_closed);
  EXPECT_TRUE(report->faults.empty());
  EXPECT_EQ(report->num_segments, 3U);
  EXPECT_EQ(report->num_deliveries, kSteps);
  EXPECT_EQ(report->num_blobs, 1U);
  ASSERT_TRUE(pack_trace(folder.path()).ok());
  const auto packed = verify_trace(folder.path());
  ASSERT_TRUE(packed.ok());
  EXPECT_TRUE(packed->faults.empty());
  EXPECT_EQ(packed->num_frames, report->num_frames);
  EXPECT_LT(packed->num_bytes, report->num_bytes / 2);
}

TEST(VerifyTrace, NamesWhatIsWrong) {
  const auto with_fault = [](const auto& plant) {
    TestFolder folder;
    write_trace(folder.path());
    plant(folder.path());
    return kinds_of(folder.path());
  };
  const auto segment = [](const auto& folder, uint64_t number) {
    return segment_path(folder, "main", 1, number);
  };
  EXPECT_EQ(with_fault([&](const auto& folder) { flip(segment(folder, 2), 5000); }),
            std::vector{Kind::kDamage});
  EXPECT_EQ(with_fault([&](const auto& folder) { flip(segment(folder, 2), 9); }),
            std::vector{Kind::kDamage})
      << "a header";
  EXPECT_EQ(with_fault([&](const auto& folder) { std::filesystem::remove(segment(folder, 2)); }),
            std::vector{Kind::kMissingSegment});
  EXPECT_EQ(with_fault([&](const auto& folder) { std::filesystem::remove(segment(folder, 1)); }),
            std::vector{Kind::kMissingSegment})
      << "the first, without a mark that it was retired";
  EXPECT_EQ(with_fault([&](const auto& folder) { std::filesystem::remove(segment(folder, 3)); }),
            std::vector{Kind::kCutTail});
  EXPECT_EQ(with_fault([&](const auto& folder) { std::filesystem::remove_all(folder / "blobs"); }),
            std::vector{Kind::kMissingBlob});
  EXPECT_EQ(with_fault([&](const auto& folder) {
              const auto blobs = ContentStore(folder / "blobs").list();
              flip(folder / "blobs" / to_hex(blobs->front()), 7);
            }),
            std::vector{Kind::kDamage});
  // A segment of another run with a fitting number; nothing else fits.
  const auto foreign = with_fault([&](const auto& folder) {
    TestFolder other;
    auto options = small_segments(other.path());
    options.run_id = 78;
    options.catalog = "{}";
    auto writer = SegmentWriter::open(options);
    for (uint64_t step = 1; step <= kSteps; ++step) append_delivery(**writer, 0, step);
    writer->reset();
    std::filesystem::copy_file(segment(other.path(), 2), segment(folder, 2),
                               std::filesystem::copy_options::overwrite_existing);
  });
  EXPECT_GE(foreign.size(), 3U);
  EXPECT_EQ(foreign[0], Kind::kDamage);
}

// Its record ends where it was killed, and the run continued without it until it was restarted.
TEST(VerifyTrace, AProcessThatDiedAndCameBackIsNoFault) {
  TestFolder folder;
  write_trace(folder.path(), false);
  EXPECT_FALSE(verify_trace(folder.path())->is_sound()) << "no process was restarted";
  SegmentWriterOptions again = small_segments(folder.path());
  again.incarnation = 2;
  auto writer = SegmentWriter::open(again);
  ASSERT_TRUE(writer.ok()) << writer.error().text();
  ASSERT_TRUE(append_delivery(**writer, 0, 1));
  ASSERT_TRUE((*writer)->close().ok());
  const auto report = verify_trace(folder.path());
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->is_sound());
  EXPECT_TRUE(report->is_closed);
  ASSERT_EQ(report->faults.size(), 1U);
  EXPECT_NE(report->faults.front().text.find("died and was started again as incarnation 2"),
            std::string::npos);
}

// The process was killed after it wrote the end frame, before it removed the segments that it had
// prepared.
TEST(VerifyTrace, ASegmentThatWasPreparedBeforeTheEndIsNoFaultOneWithFramesIs) {
  TestFolder folder, longer;
  {
    auto writer = SegmentWriter::open(small_segments(folder.path()));
    ASSERT_TRUE(writer.ok()) << writer.error().text();
    ASSERT_TRUE(append_delivery(**writer, 0, 1));
    ASSERT_TRUE((*writer)->close().ok());
  }
  const auto second = segment_path(folder.path(), "main", 1, 2);
  ASSERT_FALSE(std::filesystem::exists(second));
  write_bytes(second, prepared_segment(small_segments(folder.path())));
  const auto report = verify_trace(folder.path());
  ASSERT_TRUE(report.ok()) << report.error().text();
  EXPECT_TRUE(report->is_closed);
  EXPECT_EQ(report->num_segments, 2U);
  EXPECT_TRUE(report->faults.empty()) << report->faults.front().text;
  write_trace(longer.path());  // with the same seeds
  write_bytes(second, file_bytes(segment_path(longer.path(), "main", 1, 2)));
  const auto damaged = verify_trace(folder.path());
  ASSERT_TRUE(damaged.ok()) << damaged.error().text();
  EXPECT_FALSE(damaged->is_sound());
  EXPECT_EQ(damaged->faults.front().text, "a frame behind the end frame");
}

TEST(VerifyTrace, RetiredSegmentsAreNoFault) {
  TestFolder folder;
  write_trace(folder.path());
  ASSERT_TRUE(set_retired_through(folder.path(), "main", 1, 1).ok());
  std::filesystem::remove(segment_path(folder.path(), "main", 1, 1));
  const auto report = verify_trace(folder.path());
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->is_sound());
  EXPECT_EQ(kinds_of(folder.path()), std::vector{Kind::kRetired});
}

TEST(RecoverTrace, LeavesALiveOneAlone) {
  TestFolder folder;
  auto writer = SegmentWriter::open(small_segments(folder.path()));
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ(recover_trace(folder.path()).error().code(), Code::kUnavailable);
  const auto packed = pack_trace(folder.path());
  ASSERT_TRUE(packed.ok());
  for (const auto& step : *packed) EXPECT_FALSE(step.is_done);
  EXPECT_FALSE(packed->empty());
}

TEST(RecoverTrace, CutsWhatADeathLeftBehindAndNothingElse) {
  TestFolder folder;
  write_trace(folder.path(), false);
  // Simulates a death with one segment prepared, one half made, and one frame half written.
  const auto last = segment_path(folder.path(), "main", 1, 3);
  auto bytes = file_bytes(last);
  auto reader = SegmentReader::parse(bytes, "last");
  uint64_t end = 0;
  while (auto frame = (*reader)->next(end)) end = SegmentReader::next_offset(*frame);
  bytes.at(end + 40) = std::byte{5};
  write_bytes(last, bytes);
  write_bytes(unfinished_path(segment_path(folder.path(), "main", 1, 5)), {});
  const auto before = read_all(folder.path());

  const auto steps = recover_trace(folder.path());
  ASSERT_TRUE(steps.ok()) << steps.error().text();
  ASSERT_EQ(steps->size(), 2U);
  EXPECT_EQ(std::filesystem::file_size(last), end);
  EXPECT_EQ((*steps)[0].text,
            fmt::format("cut off an unfinished frame at {} and what follows", end));
  const auto after = read_all(folder.path());
  EXPECT_EQ(after.steps, before.steps);
  EXPECT_TRUE(after.damage.empty());
  EXPECT_TRUE(recover_trace(folder.path())->empty()) << "nothing is left to do";
}

TEST(RecoverTrace, CutsOutHolesOnlyWhenAsked) {
  TestFolder folder;
  write_trace(folder.path());
  const auto file = segment_path(folder.path(), "main", 1, 2);
  RandomStream random(3);
  auto bytes = file_bytes(file);
  auto reader = SegmentReader::parse(bytes, "holes");
  std::vector<uint64_t> places;
  for (uint64_t offset = 0; auto frame = (*reader)->next(offset);) {
    if (frame->kind() == TraceFrameKind::kDelivery && random.below(500) == 0)
      places.push_back(frame->offset);
    offset = SegmentReader::next_offset(*frame);
  }
  for (const uint64_t at : places) std::memset(bytes.data() + at, 0, sizeof(DeliveryFrame));
  write_bytes(file, bytes);
  const auto before = read_all(folder.path());
  EXPECT_EQ(before.damage.size(), places.size());
  EXPECT_TRUE(recover_trace(folder.path())->empty());
  const auto steps = recover_trace(folder.path(), {.cuts_holes = true});
  ASSERT_TRUE(steps.ok());
  ASSERT_EQ(steps->size(), 1U);
  EXPECT_EQ((*steps)[0].bytes_before - (*steps)[0].bytes_after,
            places.size() * sizeof(DeliveryFrame));
  const auto after = read_all(folder.path());
  EXPECT_EQ(after.steps, before.steps);
  EXPECT_EQ(after.count, before.count);
  EXPECT_TRUE(after.damage.empty());
}

}  // namespace
}  // namespace primerl
