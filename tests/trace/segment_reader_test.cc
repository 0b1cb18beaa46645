#include "runtime/trace/segment_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "graph/base/random.h"
#include "runtime/trace/packed_segment.h"
#include "tests/trace/segment_files.h"

namespace primerl {
namespace {

// A sealed segment with a frame of every kind and every alignment: about 1 KiB.
std::vector<std::byte> small_segment() {
  TestFolder folder;
  auto writer = SegmentWriter::open(small_segments(folder.path()));
  EXPECT_TRUE(writer.ok());
  for (uint64_t step = 1; step <= 3; ++step) {
    EXPECT_TRUE(append_note(**writer, 0, step, std::string(step, 'n')));
    EXPECT_TRUE(append_payload(**writer, 0, step, std::string(9 + step, 'b'), {"", "blob"}));
    EXPECT_TRUE(append_delivery(**writer, 0, step));
  }
  EXPECT_TRUE((*writer)->close().ok());
  return file_bytes(folder.path() / "main.1.1.ptr");
}

Contents contents_of(std::span<const std::byte> bytes) {
  Contents contents;
  auto reader = SegmentReader::parse(bytes, "test");
  EXPECT_TRUE(reader.ok());
  if (reader.ok()) read_into(**reader, contents);
  return contents;
}

uint64_t offset_of_last_frame(std::span<const std::byte> bytes) {
  auto reader = SegmentReader::parse(bytes, "test");
  uint64_t last = 0, offset = 0;
  while (auto frame = (*reader)->next(offset)) {
    last = frame->offset;
    offset = SegmentReader::next_offset(*frame);
  }
  return last;
}

TEST(SegmentReader, RefusesWhatIsNoSegmentAndSaysWhy) {
  auto bytes = small_segment();
  const auto text_of = [](std::span<const std::byte> part) {
    const auto reader = SegmentReader::parse(part, "x.ptr");
    return reader.ok() ? std::string() : reader.error().message();
  };
  EXPECT_EQ(text_of({}), "'x.ptr': 0 bytes are too few for a trace segment");
  EXPECT_EQ(text_of(std::span(bytes).first(63)),
            "'x.ptr': 63 bytes are too few for a trace segment");
  bytes[0] = std::byte{'X'};
  EXPECT_EQ(text_of(bytes), "'x.ptr': not a trace segment: it does not begin with 'PRMLTRC'");
  bytes[0] = std::byte{'P'};
  bytes[8] = std::byte{9};
  EXPECT_EQ(text_of(bytes), "'x.ptr': trace format version 9; this program reads 3");
  EXPECT_EQ(SegmentReader::open("/nowhere/main.1.1.ptr").error().code(), Code::kNotFound);
}

TEST(SegmentReader, ReadsEveryFrameOfASealedSegment) {
  const auto contents = contents_of(small_segment());
  EXPECT_EQ(contents.steps.at(0), steps_to(3));
  EXPECT_EQ(contents.count.at(TraceFrameKind::kCatalog), 1U);
  EXPECT_EQ(contents.count.at(TraceFrameKind::kNote), 3U);
  EXPECT_EQ(contents.count.at(TraceFrameKind::kPayload), 3U);
  EXPECT_EQ(contents.count.at(TraceFrameKind::kEnd), 1U);
  EXPECT_TRUE(contents.damage.empty());
}

TEST(SegmentReader, FindsAFlippedByteAtEveryOffset) {
  const auto good = small_segment();
  const auto whole = contents_of(good);
  RandomStream random(5);
  for (size_t at = 0; at < good.size(); ++at) {
    auto bytes = good;
    bytes[at] ^= static_cast<std::byte>(1 + random.below(255));
    auto reader = SegmentReader::parse(bytes, "test");
    if (!reader.ok()) {
      EXPECT_LT(at, sizeof(SegmentHeader));
      continue;
    }
    ASSERT_GE(at, sizeof(SegmentHeader)) << "a damaged header was accepted";
    Contents contents;
    read_into(**reader, contents);
    ASSERT_EQ(contents.num_frames, whole.num_frames - 1) << "at " << at;
    ASSERT_EQ(contents.damage.size(), 1U) << "at " << at;
    const Damage& damage = contents.damage[0];
    EXPECT_LE(damage.offset, at);
    EXPECT_GT(damage.offset + damage.num_bytes, at);
    EXPECT_EQ(damage.is_tail, at >= offset_of_last_frame(good));
  }
}

TEST(SegmentReader, ReadsUpToATornTailAtEveryByteOfTheLastFrame) {
  const auto good = small_segment();
  const uint64_t last = offset_of_last_frame(good);
  const uint64_t num_frames = contents_of(good).num_frames;
  for (uint64_t size = last; size < good.size(); ++size) {
    const auto contents = contents_of(std::span(good).first(size));
    ASSERT_EQ(contents.num_frames, num_frames - 1) << size;
    ASSERT_EQ(contents.damage.size(), size == last ? 0U : 1U) << size;
    if (size > last) {
      EXPECT_TRUE(contents.damage[0].is_tail);
    }
  }
}

TEST(SegmentReader, AFrameIsGoodOnlyAtItsOwnPlaceInItsOwnSegment) {
  auto bytes = small_segment();
  // Copies the first delivery's bytes over the second's: equal lengths, CRCs valid only at the
  // first offset.
  std::vector<uint64_t> places;
  auto reader = SegmentReader::parse(bytes, "test");
  for (uint64_t offset = 0; auto frame = (*reader)->next(offset);) {
    if (frame->kind() == TraceFrameKind::kDelivery) places.push_back(frame->offset);
    offset = SegmentReader::next_offset(*frame);
  }
  std::memcpy(bytes.data() + places[1], bytes.data() + places[0], sizeof(DeliveryFrame));
  const auto contents = contents_of(bytes);
  EXPECT_EQ(contents.steps.at(0), (std::vector<uint64_t>{1, 3}));
  ASSERT_EQ(contents.damage.size(), 1U);
  EXPECT_FALSE(contents.damage[0].is_hole);
}

TEST(SegmentReader, SkipsAHoleAndSaysSo) {
  auto bytes = small_segment();
  auto reader = SegmentReader::parse(bytes, "test");
  auto catalog = (*reader)->next(0);
  const auto second = (*reader)->next(SegmentReader::next_offset(*catalog));
  std::memset(bytes.data() + second->offset, 0, sizeof(uint32_t));
  const auto contents = contents_of(bytes);
  ASSERT_EQ(contents.damage.size(), 1U);
  EXPECT_TRUE(contents.damage[0].is_hole);
  EXPECT_FALSE(contents.damage[0].is_tail);
  EXPECT_EQ(contents.damage[0].offset, second->offset);
}

TEST(SegmentReader, FindsFramesByTheirOffset) {
  const auto bytes = small_segment();
  auto reader = SegmentReader::parse(bytes, "test");
  const auto catalog = (*reader)->next(0);
  ASSERT_TRUE((*reader)->at(catalog->offset).ok());
  EXPECT_EQ((*reader)->at(catalog->offset)->kind(), TraceFrameKind::kCatalog);
  for (const uint64_t offset : {uint64_t{0}, catalog->offset + 1, catalog->offset + 8,
                                uint64_t{bytes.size()}, UINT64_MAX, UINT64_MAX - 7})
    EXPECT_EQ((*reader)->at(offset).error().code(), Code::kCorrupt) << offset;
}

TEST(SegmentReader, TakesBytesThatBeginAnywhere) {
  const auto good = small_segment();
  for (size_t shift = 0; shift < 8; ++shift) {
    std::vector<std::byte> bytes(shift);
    bytes.insert(bytes.end(), good.begin(), good.end());
    EXPECT_EQ(contents_of(std::span(bytes).subspan(shift)).steps.at(0), steps_to(3)) << shift;
  }
}

TEST(SegmentReader, PackedEqualsRaw) {
  const auto raw = small_segment();
  const auto packed = pack_segment(raw);
  ASSERT_TRUE(packed.ok());
  auto a = SegmentReader::parse(raw, "raw"), b = SegmentReader::parse(*packed, "packed");
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ((*a)->num_bytes(), (*b)->num_bytes());
  for (uint64_t offset = 0;;) {
    const auto x = (*a)->next(offset), y = (*b)->next(offset);
    ASSERT_EQ(x.has_value(), y.has_value());
    if (!x) break;
    EXPECT_EQ(x->offset, y->offset);
    EXPECT_TRUE(std::ranges::equal(x->bytes, y->bytes));
    offset = SegmentReader::next_offset(*x);
  }
}

}  // namespace
}  // namespace primerl
