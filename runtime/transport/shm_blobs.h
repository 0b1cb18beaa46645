/// Blobs that another process of this machine reads where they were born.
///
///   sender                                            receiver
///   ShmBlobPool  -- address() ---- once, by any link --> ShmBlobReader::open()
///     reserve() or put() -- ShmBlobRef, in a frame ---> take() -> Blob, views the pool
///     room is free again <------ the last Blob dies ----+
///
/// What travels by the link is a reference of 32 bytes, so a payload of any size costs the I/O
/// thread nothing. The copy, where there is one, is put()'s: call it on the thread that has the
/// bytes, or fill reserve()'s room and there is none. Nothing waits: a full pool is kExhausted, and
/// the Blob then goes by the bulk link as ever.
///
/// The memory has no name (memfd): it goes when both ends are gone, also by kill -9; nothing is
/// ever left behind. The reader opens it through /proc, so both belong to one user and see each
/// other's process numbers; where that fails, open() says so and the Blobs go by the bulk link.
/// Readers cannot write data, only let go of it.
///
/// Threads: pool and reader are thread-safe; Blobs may die on any thread, also after the reader.
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

/// Where a pool is; for one frame at the greeting of two processes.
struct ShmBlobAddress {
  int64_t pid = 0;
  int32_t descriptor = -1;  // of that process
  uint64_t nonce = 0;       // what must be found there
};

/// One Blob in a pool, for the frame of the message that carries it.
struct ShmBlobRef {
  uint32_t slot = 0;
  uint32_t turn = 0;  // of the slot: another turn is another Blob
  uint64_t offset = 0;
  uint64_t size = 0;
};

inline constexpr size_t kShmBlobsMax = 4096;  // in one pool at a time

class ShmBlobPool {
 public:
  /// For up to `num_bytes` of data, in whole pages. Memory is reserved as it is used, and most of
  /// it given back when it is not; kExhausted when there is none for a beginning.
  static Result<std::unique_ptr<ShmBlobPool>> make(uint64_t num_bytes);
  ~ShmBlobPool();
  ShmBlobPool(const ShmBlobPool&) = delete;
  ShmBlobPool& operator=(const ShmBlobPool&) = delete;

  ShmBlobAddress address() const;

  struct Room {
    ShmBlobRef ref;
    std::span<std::byte> bytes;  // to be filled before the reference is sent
  };
  /// At a multiple of 64 bytes. kExhausted when no piece of that size, or no slot, is free.
  Result<Room> reserve(uint64_t size);
  /// A copy of the bytes.
  Result<ShmBlobRef> put(std::span<const std::byte> bytes);
  /// A reference that will not be sent after all.
  void cancel(const ShmBlobRef& ref);
  /// The reader's process is dead: everything is free.
  void forget_reader();

  uint64_t num_used_bytes() const;
  /// Data that has memory, used or not: at most twice kSpareBytes, and 16 MiB, beyond the last byte
  /// in use.
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
  // With mutex_:
  void collect();  // what was let go of
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
  uint64_t backed_ = 0;  // bytes of data from the beginning on that have memory

  friend class ShmBlobReader;
};

class ShmBlobReader {
 public:
  /// kUnavailable when the pool cannot be reached from here or is not what the address says.
  static Result<std::unique_ptr<ShmBlobReader>> open(const ShmBlobAddress& address);

  /// The Blob of a reference, once. kCorrupt when the reference cannot be one of the pool.
  Result<Blob> take(const ShmBlobRef& ref) const;

 private:
  struct Mapping;
  explicit ShmBlobReader(std::shared_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {}
  const std::shared_ptr<Mapping> mapping_;
};

}  // namespace primerl
