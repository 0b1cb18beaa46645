/// SegmentWriter: appends frames to the segments of one process, from every group's thread.
///
/// append() is the hot path. It reserves space in a mapped, pre-faulted file with one atomic
/// operation, copies, computes the CRC and publishes the length last. No lock, no system call, no
/// allocation. A frame survives `kill -9` as soon as append() has returned. One background thread
/// prepares the next segment, seals full ones (index, compression, retirement) and syncs the disk
/// at the level `power`.
///
/// The next segment may not be ready in time, because the disk is slow or full. With `full =
/// block`, append() waits, at most `block_max`; then the trace has failed and fault() has the
/// reason. After stop_waiting() it fails as soon as the disk has refused a segment. With `full =
/// gap`, frames that cannot be written are counted, and a gap frame is written as soon as there is
/// space. Frames are never lost silently. Once the trace has failed, nothing is written any more.
/// So it has no hole: every lost frame of a group comes after all kept frames of that group.
///
/// Threads: append() and snapshot() from any; open/close from one.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "graph/base/clock.h"
#include "graph/base/result.h"
#include "runtime/trace/frames.h"

namespace primerl {

enum class TraceLevel {
  kProcess,  // survives the death of the process
  kPower,    // also survives the failure of the machine, except the last sync_every
  kRing,     // flight recorder: memory only, the last ring_bytes, written by dump()
};
enum class TraceFull { kBlock, kGap };

struct SegmentWriterOptions {
  std::filesystem::path folder;  // runs/x/trace; made with mode 0700
  std::string process = "main";
  uint32_t process_index = 0;
  uint32_t incarnation = 1;
  uint64_t run_id = 0;
  std::string catalog;  // JSON, the first frame of every segment
  TraceLevel level = TraceLevel::kProcess;
  TraceFull full = TraceFull::kBlock;
  uint64_t segment_bytes = uint64_t{8} << 20;
  uint64_t trace_bytes_max = uint64_t{8} << 30;  // of all sealed segments: beyond it the oldest are
                                                 // retired
  uint64_t ring_bytes = uint64_t{64} << 20;
  Duration sync_every = Duration::milliseconds(100);
  Duration block_max = Duration::seconds(30);
  bool packs = true;  // sealed segments are compressed in the background
  /// The oldest segment that must be kept, because replay from the last checkpoint begins in it.
  std::function<uint64_t()> keep_from;
};

/// The contents of a flight recorder's snapshot: segment numbers, 0 without segments.
struct RingSnapshot {
  uint64_t first_segment = 0;
  uint64_t last_segment = 0;
  uint64_t num_bytes = 0;  // of the segments, as written
};

class SegmentWriter {
 public:
  static Result<std::unique_ptr<SegmentWriter>> open(SegmentWriterOptions options);
  virtual ~SegmentWriter() = default;

  /// Appends one frame: `head` begins with a TraceFrameHeader, whose length and crc are filled in
  /// here; `tail` follows. False: the frame was lost (gap) or the trace has failed. head + tail <=
  /// kFrameBytesMax.
  virtual bool append(std::span<std::byte> head, std::span<const std::byte> tail = {}) = 0;
  /// The frame that begins with `head` cannot be appended, because store() failed with `why`. It
  /// counts as lost, like a frame without space. With `full = gap` and kRing, recording continues;
  /// otherwise the trace has failed. Always returns false, as append() would.
  virtual bool lose(std::span<const std::byte> head, Error why) = 0;
  /// Stores bytes once by content; returns the 32-byte SHA-256. It may write a file, so use it for
  /// large payloads only.
  virtual Result<std::array<std::byte, 32>> store(std::span<const std::byte> bytes) = 0;
  /// kRing: writes the kept buffers as ordinary segments; recording ends here. Other levels: syncs.
  /// May be called again.
  virtual Status dump() = 0;
  /// kRing: writes the kept buffers as ordinary segments, marked as a snapshot that replaces an
  /// older one, and continues to record. Other levels: kInvalid. From any thread.
  virtual Result<RingSnapshot> snapshot();
  /// kRing: writes the kept buffers from the handler of a fatal signal (async-signal-safe, once).
  virtual void dump_in_handler() noexcept {}
  /// The run is being stopped, so append() and close() wait no longer for a disk that is full. From
  /// any thread.
  virtual void stop_waiting() {}
  /// Writes the end frame, seals, joins the thread. No append() may run or follow.
  virtual Status close() = 0;
  virtual Status fault() const = 0;
  virtual uint64_t num_lost() const = 0;
  virtual uint64_t segment_number() const = 0;  // the segment that is being written
};

}  // namespace primerl
