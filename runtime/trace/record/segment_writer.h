/// SegmentWriter: appends frames to the segments of one process, from every group's thread.
///
/// append() is the hot path: it reserves room in a mapped, pre-faulted file with one atomic
/// operation, copies, computes the CRC and publishes the length last. No lock, no system call, no
/// allocation. What it wrote survives `kill -9` as soon as it returns. One background thread
/// prepares the next segment, seals full ones (index, compression, retirement) and syncs the disk
/// at the level `power`.
///
/// When the next segment is not ready in time (a slow or full disk): `full = block` waits, at most
/// `block_max`, then the trace has failed and fault() has the reason; `full = gap` counts the
/// frames it could not write and writes a gap frame as soon as there is room. Frames are never lost
/// silently. Once the trace has failed nothing is written any more, so it has no hole: a frame that
/// was lost stands after all that were kept of its group.
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
  kPower,    // also survives the death of the machine, except the last sync_every
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
  uint64_t trace_bytes_max = uint64_t{8} << 30;  // of all sealed segments: the oldest are retired
  uint64_t ring_bytes = uint64_t{64} << 20;
  Duration sync_every = Duration::milliseconds(100);
  Duration block_max = Duration::seconds(30);
  bool packs = true;  // sealed segments are compressed in the background
  /// The newest segment that must stay because replay from the last checkpoint begins in it.
  std::function<uint64_t()> keep_from;
};

/// What a snapshot of a flight recorder holds: segments by number, 0 when there is none.
struct RingSnapshot {
  uint64_t first_segment = 0;
  uint64_t last_segment = 0;
  uint64_t num_bytes = 0;  // of the segments, as written
};

class SegmentWriter {
 public:
  static Result<std::unique_ptr<SegmentWriter>> open(SegmentWriterOptions options);
  virtual ~SegmentWriter() = default;

  /// Appends one frame: `head` begins with a TraceFrameHeader whose length and crc are filled in
  /// here; `tail` follows it. False: lost (gap) or the trace has failed. head + tail <=
  /// kFrameBytesMax.
  virtual bool append(std::span<std::byte> head, std::span<const std::byte> tail = {}) = 0;
  /// A frame that begins with `head` cannot be appended, because store() failed with `why`: it is
  /// lost like one without room. `full = gap` and kRing record on, otherwise the trace has failed.
  /// Always false, as append() would be.
  virtual bool lose(std::span<const std::byte> head, Error why) = 0;
  /// Stores bytes by content, once; returns the 32-byte SHA-256. May write a file: use it for large
  /// payloads only.
  virtual Result<std::array<std::byte, 32>> store(std::span<const std::byte> bytes) = 0;
  /// kRing: writes what is kept as ordinary segments; recording ends here. Other levels: syncs.
  /// Safe to call again.
  virtual Status dump() = 0;
  /// kRing: writes what is kept so far as ordinary segments, marked as a snapshot that replaces an
  /// older one, and records on. Other levels: kInvalid. From any thread.
  virtual Result<RingSnapshot> snapshot();
  /// kRing: writes what is kept, from the handler of a fatal signal (async-signal-safe, once).
  virtual void dump_in_handler() noexcept {}
  /// Writes the end frame, seals, joins the thread. No append() may run or follow.
  virtual Status close() = 0;
  virtual Status fault() const = 0;
  virtual uint64_t num_lost() const = 0;
  virtual uint64_t segment_number() const = 0;  // the one written to now
};

}  // namespace primerl
