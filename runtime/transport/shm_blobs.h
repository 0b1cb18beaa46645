/// Blobs in shared memory, which another process of this machine reads without a copy.
///
///   sender                                            receiver
///   ShmBlobPool  -- address() -- once, by connection --> ShmBlobReader::open()
///     reserve() or put() -- ShmBlobRef, in a frame ---> take() -> Blob, views the pool
///     space is free again <----- the last Blob dies ----+
///
/// Only a reference of 32 bytes is sent, so the I/O thread's cost does not depend on the size.
/// put() makes the one copy: call it on the thread that has the bytes. Or write directly into the
/// bytes of reserve(), without a copy. No call waits: when the pool is full, kExhausted is
/// returned, and the Blob is sent on the bulk lane.
///
/// The memory has no name (memfd). It is freed when both ends are gone, also after kill -9; nothing
/// is left behind. The reader opens it through /proc, so both processes must belong to one user and
/// see each other's process numbers. Otherwise open() returns an error and the Blobs are sent on
/// the bulk lane. Readers cannot write data, only release it.
///
/// Threads: pool and reader are thread-safe. Blobs may be destroyed on any thread, also after the
/// reader.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "graph/base/blob.h"
#include "graph/base/result.h"

namespace primerl {

/// The address of a pool; sent in the greeting of two processes.
struct ShmBlobAddress {
  int64_t pid = 0;
  int32_t descriptor = -1;  // of that process
  uint64_t nonce = 0;       // identifies the pool: what open() must find there
};

/// One Blob in a pool, for the frame of the message that carries it.
struct ShmBlobRef {
  uint32_t slot = 0;
  uint32_t turn = 0;  // use counter of the slot: each reuse gets another number
  uint64_t offset = 0;
  uint64_t size = 0;
};

inline constexpr size_t kShmBlobsMax = 4096;  // in one pool at a time

class ShmBlobPool {
 public:
  /// For up to `num_bytes` of data, in whole pages. Memory is allocated when it is needed, and most
  /// of it is released when it is not. kExhausted when none is available at the start.
  static Result<std::unique_ptr<ShmBlobPool>> make(uint64_t num_bytes);
  ~ShmBlobPool();
  ShmBlobPool(const ShmBlobPool&) = delete;
  ShmBlobPool& operator=(const ShmBlobPool&) = delete;

  ShmBlobAddress address() const;

  struct Room {
    ShmBlobRef ref;
    std::span<std::byte> bytes;  // must be written before the reference is sent
  };
  /// Reserves bytes at a multiple of 64. kExhausted when no free part of that size, or no slot, is
  /// left.
  Result<Room> reserve(uint64_t size);
  /// Reserves space and copies the bytes into it.
  Result<ShmBlobRef> put(std::span<const std::byte> bytes);
  /// Frees a reference that will not be sent.
  void cancel(const ShmBlobRef& ref);
  /// The reader's process is dead: frees all its Blobs.
  void forget_reader();

  uint64_t num_used_bytes() const;
  /// Bytes of data with allocated memory, used or not. At most twice kSpareBytes, and 16 MiB,
  /// beyond the last used byte.
  uint64_t num_backed_bytes() const;
  static constexpr uint64_t kSpareBytes = uint64_t{64} << 20;

 private:
  struct Page;
  struct Piece {
    uint64_t size = 0;
    uint32_t slot = 0;
    uint32_t turn = 0;
  };

  ShmBlobPool(int descriptor, uint64_t nonce, uint64_t num_bytes)
      : descriptor_(descriptor), nonce_(nonce), num_bytes_(num_bytes) {}
  // With mutex_ held:
  void collect();  // frees Blobs that the reader released
  Status back(uint64_t end);
  void give_back();
  void free_piece(std::map<uint64_t, Piece>::iterator piece);
  Page& page() const { return *reinterpret_cast<Page*>(memory_); }

  const int descriptor_;
  const uint64_t nonce_;
  const uint64_t num_bytes_;
  std::byte* memory_ = nullptr;  // page, then data

  mutable std::mutex mutex_;
  std::map<uint64_t, Piece> used_;  // by offset
  std::vector<uint32_t> free_slots_;
  uint64_t num_used_ = 0;
  uint64_t backed_ = 0;  // number of bytes, from the beginning of the data, that have memory

  friend class ShmBlobReader;
};

class ShmBlobReader {
 public:
  /// kUnavailable when the pool cannot be opened from here or does not match the address.
  static Result<std::unique_ptr<ShmBlobReader>> open(const ShmBlobAddress& address);

  /// The Blob of a reference, once. kCorrupt when the reference cannot belong to the pool.
  Result<Blob> take(const ShmBlobRef& ref) const;

 private:
  struct Mapping;
  explicit ShmBlobReader(std::shared_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {}
  const std::shared_ptr<Mapping> mapping_;
};

}  // namespace primerl
