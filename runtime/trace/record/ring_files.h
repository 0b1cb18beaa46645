/// RingFiles: writes the buffers of a flight recorder as ordinary segments. It does so at the end
/// of the recording, as a snapshot while recording continues, or in the handler of a fatal signal.
///
/// A snapshot contains the record up to one moment. Every frame in it is complete, so a message
/// that is recorded as received is also recorded as sent. A new snapshot replaces an older one.
/// While the file `<process>.<incarnation>.dump` exists, the segments are a snapshot and the run
/// continued after them.
///
/// A signal handler must not lock or allocate, because other threads may hold the lock or be inside
/// the allocator. Those threads continue to record. So a frame that is being written at that time
/// becomes a hole in the file, as after `kill -9`.
///
/// Threads: write() from one at a time; forget() from any; write_in_handler() from any, once.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "graph/base/json.h"
#include "graph/base/result.h"
#include "runtime/trace/record/blob_ledger.h"
#include "runtime/trace/record/segment_buffer.h"
#include "runtime/trace/record/segment_writer.h"

namespace primerl {

/// The newest buffer and all buffers before it, back to the first missing number, in order of their
/// numbers.
std::vector<SegmentBuffer*> newest_without_gap(std::vector<SegmentBuffer*> buffers);

class RingFiles {
 public:
  /// `buffers` are all that the ring will ever use. They and `blobs` must stay valid while the
  /// object exists.
  RingFiles(std::filesystem::path folder, std::string process, uint32_t incarnation,
            const std::vector<std::unique_ptr<SegmentBuffer>>& buffers, BlobLedger& blobs);

  using OnWritten = std::function<void(uint64_t number)>;
  /// Writes opened buffers with consecutive numbers, oldest first. Each must stay unchanged until
  /// `on_written` was called for it. `wait_max`: how long to wait for frames that are being
  /// written. Each file is written completely or not at all.
  Result<RingSnapshot> write(std::span<SegmentBuffer* const> kept, bool is_snapshot,
                             Duration wait_max, const OnWritten& on_written);
  /// The ring overwrites a segment: its blobs are removed, unless the segment is on the disk.
  void forget(uint64_t number);

  /// Writes everything recorded so far; async-signal-safe. Segments that cannot be written are
  /// skipped.
  void write_in_handler() noexcept;

 private:
  Result<RingSnapshot> write_segments(std::span<SegmentBuffer* const> kept, Duration wait_max,
                                      const OnWritten& on_written);
  Status mark(const Json& facts) const;
  void remove_before(uint64_t first);
  bool write_file_in_handler(const SegmentBuffer& buffer, uint64_t number) noexcept;
  void write_retired_in_handler(uint64_t last) noexcept;

  const std::filesystem::path folder_;
  const std::string process_;
  const uint32_t incarnation_;
  BlobLedger& blobs_;
  std::mutex mutex_;
  std::set<uint64_t> on_disk_;  // guarded by mutex_: segments of the newest write()
  // Allocated before a signal can arrive.
  const std::string folder_text_, prefix_;  // "runs/x/trace", "runs/x/trace/main.1."
  std::vector<const SegmentBuffer*> buffers_;
  std::string path_, other_path_;  // large enough for any name
  std::atomic<bool> is_written_{false}, is_writing_{false};
  std::atomic<uint64_t> oldest_on_disk_{UINT64_MAX};
};

}  // namespace primerl
