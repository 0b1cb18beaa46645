/// BulkAssembly: reassembles large Blobs from their chunks, which arrive in order.
///
/// A Blob of one chunk shares the received buffer; one of several gets memory of its announced size
/// (checked against the limits first) into which each chunk is copied once. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "graph/base/blob.h"
#include "runtime/wire/peer_frame.h"

namespace primerl {

/// Received bytes and what keeps them alive; without an owner they are valid during the call only.
struct ReceivedPart {
  std::shared_ptr<const void> owner;
  size_t owner_bytes = 0;
  std::span<const std::byte> bytes;
};

class BulkAssembly {
 public:
  BulkAssembly(uint64_t object_bytes_max, uint64_t waiting_bytes_max)
      : object_bytes_max_(object_bytes_max), waiting_bytes_max_(waiting_bytes_max) {}

  /// kChunk: it does not follow the earlier chunks. kTooLong: above a limit.
  FrameRefusal add(const ChunkHeader& header, const ReceivedPart& piece);

  /// Adds an object that arrived whole, through shared memory.
  FrameRefusal add(uint64_t object, Blob whole);

  /// Objects 0 .. num_complete() - 1 have arrived (or were taken already).
  uint64_t num_complete() const { return num_complete_; }
  /// CHECKs that the object has arrived and was not taken.
  Blob take(uint64_t object);

 private:
  const uint64_t object_bytes_max_;
  const uint64_t waiting_bytes_max_;
  std::deque<Blob> complete_;  // the last of num_complete_ objects; empty once taken
  uint64_t num_complete_ = 0;
  uint64_t waiting_bytes_ = 0;  // announced or arrived, and not taken
  // The object that is being assembled, when it has several chunks.
  std::shared_ptr<std::byte[]> memory_;
  uint64_t object_bytes_ = 0;
  uint64_t filled_ = 0;
};

}  // namespace primerl
