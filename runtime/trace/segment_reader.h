/// SegmentReader: reads the frames of one segment file, raw (.ptr, mapped) or packed (.ptrz,
/// unpacked into memory block by block). Treats every input as untrusted. Lengths, kinds and CRCs
/// are checked before a frame is returned, so its fields may be used directly. Ids in a frame are
/// valid in the catalog only after Trace (trace.h) has checked them.
///
/// next() and damage() are for one thread, at() for any number of threads. Frames stay valid while
/// the reader exists.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "graph/base/result.h"
#include "runtime/trace/frames.h"

namespace primerl {

struct Frame {
  uint64_t offset = 0;               // in the raw segment
  std::span<const std::byte> bytes;  // the whole frame, [length]
  const TraceFrameHeader& header() const {
    return *reinterpret_cast<const TraceFrameHeader*>(bytes.data());
  }
  TraceFrameKind kind() const { return static_cast<TraceFrameKind>(header().kind); }
  /// The fixed part as F; the reader has checked that the frame is long enough for its kind.
  template <class F>
  const F& as() const {
    return *reinterpret_cast<const F*>(bytes.data());
  }
  template <class F>
  std::span<const std::byte> after() const {
    return bytes.subspan(sizeof(F));
  }
};

/// The JSON of a catalog's frame; kCorrupt when it was packed and cannot be unpacked.
Result<std::string> catalog_text(const Frame& frame);

/// Bytes that are not a frame: a write that the death of the process interrupted (its length is
/// still zero), or damage. Zeros up to the end of a segment do not count.
struct Damage {
  uint64_t offset = 0;
  uint64_t num_bytes = 0;
  bool is_hole = false;  // space that was reserved and never filled: the process died there; not
                         // damage
  bool is_tail = false;  // no frame follows in this segment: an incomplete tail
};

class SegmentReader {
 public:
  /// kCorrupt when the header is wrong; an incomplete tail is no error (Damage::is_tail).
  static Result<std::unique_ptr<SegmentReader>> open(const std::filesystem::path& file);
  /// Reads a segment from bytes in memory, for fuzzing.
  static Result<std::unique_ptr<SegmentReader>> parse(std::span<const std::byte> bytes,
                                                      std::string what);
  virtual ~SegmentReader() = default;

  virtual const SegmentHeader& header() const = 0;
  /// The frame at or after `offset`; holes and damage are skipped and added to damage(). None at
  /// the end. Start with offset 0; continue with next_offset(frame).
  virtual std::optional<Frame> next(uint64_t offset) = 0;
  /// The frame that begins exactly at an offset from an index; kCorrupt if none does.
  virtual Result<Frame> at(uint64_t offset) = 0;
  static uint64_t next_offset(const Frame& frame) {
    return (frame.offset + frame.bytes.size() + kFrameAlignment - 1) & ~(kFrameAlignment - 1);
  }
  virtual const std::vector<Damage>& damage() const = 0;  // that next() skipped
  virtual uint64_t num_bytes() const = 0;                 // of the raw segment
};

}  // namespace primerl
