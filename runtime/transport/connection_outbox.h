/// ConnectionOutbox: the queue of one peer, between send() and the I/O thread. It keeps the
/// sender's side of the ledger: sent == acknowledged + unacknowledged + abandoned.
///
/// Thread-safe. put() appends the encoded batch to the waiting ones, so a backlog is sent in few
/// frames. Large pieces are shared, not copied.
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

/// A Blob or body that is sent separately from its batch.
struct BulkPiece {
  Blob bytes;                     // empty when `ref` is set
  std::optional<ShmBlobRef> ref;  // its place in the pool that the peer reads
};

/// Data that waits for one peer, in the form in which it is sent. Frames stay small enough that
/// their memory is reused: a growing buffer of megabytes would be mapped, cleared and freed every
/// time.
struct Outgoing {
  struct Frame {
    std::vector<std::byte> bytes;  // batches, one after the other
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

  /// From now on large pieces are copied into this pool, on the sender's thread, while it has free
  /// space. close() releases the pool.
  void use_pool(std::shared_ptr<ShmBlobPool> pool);
  /// kExhausted: a limit; kUnavailable: closed. Moves the pieces out of `encoded` only if the
  /// result is ok. `is_first`: the outbox was empty, so the I/O thread must be woken.
  Status put(BatchEncoder& encoded, uint64_t num_messages, bool& is_first);
  /// Moves out everything that was put since the last take(); false: nothing.
  bool take(Outgoing& outgoing);
  void acknowledge(const TransferCounts& counts);
  /// Further puts fail, and unacknowledged data is abandoned. The first reason is kept.
  void close(Error why);

  /// Adds the sender's counters to a status.
  void add_to(ConnectionStatus& status) const;
  bool is_settled() const;  // nothing waits for its acknowledgement

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
