/// RingFiles: writes the buffers of a flight recorder as ordinary segments, in peace or from the
/// handler of a deadly signal.
///
/// From a handler no lock may be taken and no memory asked for: other threads may hold the one and
/// be in the middle of the other, and they go on recording. So a frame that is being written then
/// is a hole in the file, as after `kill -9`.
///
/// Threads: write() from one; write_in_handler() from any, once.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "graph/base/result.h"
#include "runtime/trace/segment_buffer.h"

namespace primerl {

class RingFiles {
 public:
  /// `buffers` outlive it, all that the ring will ever use.
  RingFiles(std::filesystem::path folder, std::string process, uint32_t epoch,
            const std::vector<std::unique_ptr<SegmentBuffer>>& buffers);

  /// Of sealed buffers, oldest first. Whole or not at all, file by file.
  Status write(std::span<SegmentBuffer* const> kept) const;

  /// Everything recorded so far; async-signal-safe. What cannot be written is left out.
  void write_in_handler() noexcept;

 private:
  bool write_file_in_handler(const SegmentBuffer& buffer, uint64_t number) noexcept;
  void write_retired_in_handler(uint64_t last) noexcept;

  const std::filesystem::path folder_;
  const std::string process_;
  const uint32_t epoch_;
  // Made before anything goes wrong.
  const std::string folder_text_, prefix_;  // "runs/x/trace", "runs/x/trace/main.1."
  std::vector<const SegmentBuffer*> buffers_;
  std::string path_, other_path_;  // with room for any name
  std::atomic<bool> is_written_{false};
};

}  // namespace primerl
