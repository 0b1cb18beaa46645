/// The raw bytes of a segment file, from any source: mapped from a raw file, unpacked block by
/// block from a packed file, or borrowed from the caller. Addresses stay valid while the object
/// exists. ensure() may be called from several threads.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/base/result.h"
#include "runtime/trace/packed_segment.h"

namespace primerl {

/// Anonymous or file memory; the destructor unmaps it.
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* address, size_t size) : address_(address), size_(size) {}
  Mapping(Mapping&& other) noexcept { swap(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Mapping();
  /// Maps a whole file for reading. A file that may still be written and truncated is copied
  /// instead: touching a mapping after the end of its file kills the process.
  static Result<Mapping> of_file(const std::filesystem::path& file);
  /// Zeros, which use no memory until they are touched.
  static Result<Mapping> of_zeros(size_t size);

  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(address_), size_}; }

 private:
  void swap(Mapping& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(size_, other.size_);
  }
  void* address_ = nullptr;
  size_t size_ = 0;
};

class SegmentBytes {
 public:
  /// Raw or packed; the first bytes of the file decide.
  static Result<std::unique_ptr<SegmentBytes>> open(const std::filesystem::path& file);
  /// `bytes` must stay valid while the object exists. Copied when they do not begin at a multiple
  /// of 8.
  static Result<std::unique_ptr<SegmentBytes>> borrow(std::span<const std::byte> bytes);

  /// The whole raw segment. For a packed segment, only the ranges given to ensure() are valid.
  std::span<const std::byte> raw() const { return raw_; }
  /// Makes [begin, end) readable. False when a block of it is damaged; that block then reads as
  /// zeros.
  bool ensure(uint64_t begin, uint64_t end);
  /// For a packed segment: the end of the damaged block that contains `offset`; 0 if there is none.
  uint64_t damaged_until(uint64_t offset) const;

 private:
  enum class BlockState : uint8_t { kPacked, kReady, kDamaged };
  Status start();
  BlockState unpack(size_t block);

  Mapping file_map_, raw_map_;
  std::span<const std::byte> file_, raw_;
  std::optional<PackedTable> table_;
  std::vector<std::atomic<BlockState>> states_;  // per block
  std::mutex mutex_;                             // held by the thread that unpacks
};

}  // namespace primerl
