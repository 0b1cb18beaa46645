/// BulkAssembly: reassembles large Blobs from their chunks, which arrive in order.
///
/// A Blob of one chunk shares the received buffer. A Blob of several chunks gets memory of its
/// announced size, after that size was checked against the limits. Each chunk is copied into it
/// once. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "graph/base/blob.h"
#include "runtime/wire/peer_frame.h"

namespace primerl {

/// Received bytes and the object that keeps them alive. Without an owner they are valid during the
/// call only.
struct ReceivedPart {
  std::shared_ptr<const void> owner;
  size_t owner_bytes = 0;
  std::span<const std::byte> bytes;
};

class BulkAssembly {
 public:
  BulkAssembly(uint64_t object_bytes_max, uint64_t waiting_bytes_max)
      : object_bytes_max_(object_bytes_max), waiting_bytes_max_(waiting_bytes_max) {}

  /// kChunk: it does not follow the earlier chunks. kTooLong: it exceeds a limit.
  FrameRefusal add(const ChunkHeader& header, const ReceivedPart& piece);

  /// Adds an object that arrived as one piece, through shared memory.
  FrameRefusal add(uint64_t object, Blob whole);

  /// Objects 0 .. num_complete() - 1 have arrived. Some of them may already have been moved out by
  /// take().
  uint64_t num_complete() const { return num_complete_; }
  /// Moves an object out. CHECKs that the object has arrived and is still here.
  Blob take(uint64_t object);

 private:
  const uint64_t object_bytes_max_;
  const uint64_t waiting_bytes_max_;
  std::deque<Blob> complete_;  // the last of num_complete_ objects; empty after take()
  uint64_t num_complete_ = 0;
  uint64_t waiting_bytes_ = 0;  // announced or arrived, and not yet moved out
  // The object that is being assembled, when it has several chunks.
  std::shared_ptr<std::byte[]> memory_;
  uint64_t object_bytes_ = 0;
  uint64_t filled_ = 0;
};

}  // namespace primerl
