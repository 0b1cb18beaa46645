/// One input of the trace fuzzer: a segment, raw or packed, read as an untrusted file.
/// tests/trace/trace_fuzz_test.cc runs it over the corpus and over mutations of it.
///
/// A random change of a segment almost always breaks a CRC, and then only the scan sees it. So
/// every input is read twice: unchanged, and with corrected CRCs of its frames, to test how lengths
/// and kinds are handled.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "graph/base/crc32c.h"
#include "runtime/trace/frame_check.h"
#include "runtime/trace/segment_reader.h"

namespace primerl {

/// Reads a segment to its end and touches every returned byte.
inline void read_hostile_segment(std::span<const std::byte> bytes) {
  auto opened = SegmentReader::parse(bytes, "fuzz");
  if (!opened.ok()) return;
  SegmentReader& reader = **opened;
  uint64_t offset = 0;
  while (auto frame = reader.next(offset)) {
    CHECK(frame->offset >= offset && frame->offset % kFrameAlignment == 0, "a frame's place");
    CHECK(frame->offset + frame->bytes.size() <= reader.num_bytes(), "a frame beyond the end");
    CHECK(frame->bytes.size() >= fixed_bytes(frame->header().kind), "a frame cut short");
    CHECK(reader.at(frame->offset).ok(), "a frame found once must be found again");
    uint32_t sum = crc32c(frame->bytes);
    if (frame->kind() == TraceFrameKind::kPayload) {
      CHECK(visit_payload(frame->bytes,
                          [&](const PayloadPart& part) { sum = crc32c(part.bytes, sum); }),
            "a payload that was accepted does not fill its frame");
    }
    [[maybe_unused]] volatile uint32_t kept = sum;
    offset = SegmentReader::next_offset(*frame);
  }
  uint64_t end = 0;
  for (const auto& damage : reader.damage()) {
    CHECK(damage.offset >= end && damage.num_bytes > 0, "damage out of order");
    end = damage.offset + damage.num_bytes;
    CHECK(end <= reader.num_bytes(), "damage beyond the end");
  }
}

/// A copy with a corrected header CRC, and corrected CRCs of all frames with a possible length.
inline std::vector<std::byte> with_good_crcs(std::span<const std::byte> bytes) {
  std::vector<std::byte> good(bytes.begin(), bytes.end());
  if (good.size() < sizeof(SegmentHeader)) return good;
  const std::span<std::byte> all(good);
  uint32_t crc = crc32c(std::span<const std::byte>(all.first(offsetof(SegmentHeader, crc))));
  std::memcpy(good.data() + offsetof(SegmentHeader, crc), &crc, sizeof(crc));
  SegmentHeader header;
  std::memcpy(&header, good.data(), sizeof(header));
  for (uint64_t at = sizeof(header); at + sizeof(TraceFrameHeader) <= good.size();) {
    uint32_t length = 0;
    std::memcpy(&length, good.data() + at, sizeof(length));
    if (length < sizeof(TraceFrameHeader) || length > good.size() - at) {
      at += kFrameAlignment;
      continue;
    }
    crc = crc32c(std::span<const std::byte>(all.subspan(at + kFrameCrcBegin, length - 8)),
                 crc_start(header.seed, at));
    std::memcpy(good.data() + at + offsetof(TraceFrameHeader, crc), &crc, sizeof(crc));
    at += (length + kFrameAlignment - 1) & ~uint64_t{kFrameAlignment - 1};
  }
  return good;
}

inline void fuzz_trace(std::span<const std::byte> bytes) {
  read_hostile_segment(bytes);
  read_hostile_segment(with_good_crcs(bytes));
}

}  // namespace primerl
