/// SegmentBuffer: one segment that is being written, in a mapped file or (flight recorder) in
/// memory.
///
/// States: closed -> begin() -> open() -> full -> sealed -> closed, and again. Threads reserve
/// space with one atomic addition and write into it. The thread whose reservation is the first to
/// pass the end knows how much is used. A reservation in a closed or full buffer always fails. So a
/// late thread may safely try a buffer that has already become another segment. Address and
/// capacity of the buffer never change.
///
/// Threads: reserve() and write() from any; the rest from one at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "graph/base/result.h"
#include "runtime/trace/frames.h"

namespace primerl {

constexpr uint64_t aligned_to_frames(uint64_t size) {
  return (size + kFrameAlignment - 1) & ~uint64_t{kFrameAlignment - 1};
}

/// A catalog in the form in which segments store it: packed when it is larger than kInlineBytesMax.
struct CatalogPart {
  std::string bytes;
  uint8_t flags = 0;  // of its frame
};
/// kInvalid above kCatalogBytesMax, or when even the packed catalog does not fit into a frame.
Result<CatalogPart> catalog_part(const std::string& json);

class SegmentBuffer {
 public:
  explicit SegmentBuffer(uint64_t capacity) : capacity_(capacity) {}
  SegmentBuffer(const SegmentBuffer&) = delete;
  SegmentBuffer& operator=(const SegmentBuffer&) = delete;
  ~SegmentBuffer() { release(); }

  /// Creates, allocates and maps the file that becomes `file`, with every page present;
  /// map_memory() allocates zeroed memory. kExhausted when space may become free later, else kIo.
  Status map_file(const std::filesystem::path& file);
  Status map_memory();
  /// Writes the segment's header and its catalog. The magic, sizes and CRC are filled in here.
  void begin(SegmentHeader header, const CatalogPart& catalog);
  /// Renames the file to its name. So a segment with that name has a header, whenever the process
  /// dies.
  Status publish(const std::filesystem::path& file);
  /// From now on reservations succeed.
  void open();

  /// Returns the offset where `padded` bytes (a multiple of 8) may be written, if fits(at, padded).
  /// Exactly one caller gets an offset <= capacity() that does not fit. That caller hands the
  /// buffer over, and the offset becomes its used().
  uint64_t reserve(uint64_t padded) { return tail_.fetch_add(padded, std::memory_order_acquire); }
  bool fits(uint64_t at, uint64_t padded) const { return at + padded <= capacity_; }
  bool is_full() const { return tail_.load(std::memory_order_acquire) > capacity_; }
  /// Fills in length and CRC of `head`, copies both parts, then publishes the length.
  void write(uint64_t at, std::span<std::byte> head, std::span<const std::byte> tail);

  void set_used(uint64_t used) { used_.store(used, std::memory_order_relaxed); }
  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t capacity() const { return capacity_; }
  const SegmentHeader& header() const { return header_; }
  const std::filesystem::path& file() const { return file_; }
  std::span<const std::byte> bytes() const { return {base_, used()}; }
  /// Bytes that may have been written so far; empty unless the buffer is in memory and was opened.
  /// From any thread at any time, also from a signal handler.
  std::span<const std::byte> live_bytes() const;
  /// The end of the newest reservation that fits. None after a reservation passed the end of the
  /// buffer, until used() is set. For an opened buffer, from any thread.
  std::optional<uint64_t> reserved_to() const;
  /// Whether every frame up to `end`, a value of reserved_to(), is finished. From any thread, until
  /// begin() is called again.
  bool is_finished_to(uint64_t end) const;

  /// Walks over the finished frames up to `end`; false while one of them is still being written.
  bool is_written_to(uint64_t end);
  /// Deliveries counted by is_written_to().
  uint64_t num_deliveries() const { return num_deliveries_; }

  /// After it returns, everything written so far survives a power failure.
  Status sync() const;
  /// Unmaps the file and truncates it to used().
  Status seal_file();
  /// Unmaps and closes; with `removes` it also deletes the file, which was never used.
  void release(bool removes = false);

 private:
  static constexpr uint64_t kClosed = uint64_t{1} << 62;

  const uint64_t capacity_;
  alignas(64) std::atomic<uint64_t> tail_ = kClosed;

  // Set between closed and open().
  alignas(64) std::byte* base_ = nullptr;
  uint64_t seed_ = 0;
  uint64_t first_free_ = 0;
  SegmentHeader header_{};
  std::filesystem::path file_;
  int fd_ = -1;
  std::atomic<bool> is_live_ = false;  // opened, and begin() was not called again since then
  // Used only by the thread that seals.
  std::atomic<uint64_t> used_ = 0;
  uint64_t walked_ = 0;
  uint64_t num_deliveries_ = 0;
};

}  // namespace primerl
