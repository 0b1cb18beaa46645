/// ConnectionOutbox: where send() puts batches for one peer, and where the I/O thread takes them.
/// Holds the sender's side of the ledger: sent == acknowledged + unacknowledged + abandoned.
///
/// Thread-safe. put() copies the encoded batch behind those that wait, so that what piled up
/// leaves in few frames; large pieces are shared.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/transport/shm_blobs.h"
#include "runtime/transport/transport.h"
#include "runtime/wire/message_batch_codec.h"

namespace primerl {

/// A Blob or body that does not travel with its batch.
struct BulkPiece {
  Blob bytes;                     // empty where `ref` is
  std::optional<ShmBlobRef> ref;  // in the pool that the peer reads
};

/// What waits for one peer, as it will leave. Frames stay small enough for their memory to be used
/// again (a growing run of megabytes would be mapped, cleared and given back every time).
struct Outgoing {
  struct Frame {
    std::vector<std::byte> bytes;  // batches, one behind the other
    size_t num_bulk = 0;
    TransferCounts counts;
  };
  std::vector<Frame> frames;
  std::vector<BulkPiece> bulk;  // of all frames, in order
  bool empty() const { return frames.empty(); }
};

class ConnectionOutbox {
 public:
  explicit ConnectionOutbox(const ConnectionLimits& limits) : limits_(limits) {}

  /// Large pieces are copied into this pool from now on, on the sender's thread, while there is
  /// room; close() lets go of it.
  void use_pool(std::shared_ptr<ShmBlobPool> pool);
  /// kExhausted: a limit; kUnavailable: closed. Takes the pieces of `encoded` only when it is ok.
  /// `is_first`: the outbox was empty, so the I/O thread must be told.
  Status put(BatchEncoder& encoded, uint64_t num_messages, bool& is_first);
  /// What was put since the last take(); false: nothing.
  bool take(Outgoing& outgoing);
  void acknowledge(const TransferCounts& counts);
  /// Nothing is taken any more; what is not acknowledged is abandoned. The first reason stays.
  void close(Error why);

  /// The numbers of sending, into a status.
  void add_to(ConnectionStatus& status) const;
  bool is_settled() const;  // nothing waits for acknowledgement

 private:
  Outgoing::Frame& frame_for(size_t batch_bytes);
  std::shared_ptr<ShmBlobPool> pool() const;

  const ConnectionLimits limits_;
  // Guarded by mutex_.
  mutable std::mutex mutex_;
  Outgoing waiting_;
  TransferCounts sent_, acknowledged_, abandoned_;
  uint64_t next_bulk_ = 0;
  std::shared_ptr<ShmBlobPool> pool_;  // null: nothing is shared
  uint64_t num_blobs_shared_ = 0, num_bytes_shared_ = 0;
  std::optional<Error> closed_;
};

void add(TransferCounts& sum, const TransferCounts& more);
TransferCounts minus(TransferCounts from, const TransferCounts& less);

}  // namespace primerl
