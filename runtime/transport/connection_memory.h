/// ConnectionMemory: the shared memory of a connection whose processes are on one machine. It has a
/// pool for the large Blobs that this end sends, and a reader of the peer's pool.
///
///   greetings   each end sends the address of its pool, the other opens it
///   reads       and says that it did; from then on Blobs of the pool are sent as references
///
/// A Blob that does not fit into the pool, or whose pool the peer cannot open, is sent on the bulk
/// lane. The pool is freed with the connection, so the Blobs that a dead peer held are freed too.
///
/// Not thread-safe: used by the I/O thread only. The pool itself is also used by the threads that
/// send.
#pragma once

#include <memory>

#include "runtime/transport/shm_blobs.h"
#include "runtime/wire/peer_frame.h"

namespace primerl {

class ConnectionMemory {
 public:
  /// `pool_bytes_max` 0, or no memory available: nothing is shared.
  explicit ConnectionMemory(uint64_t pool_bytes_max);

  /// Fills in the address of this pool, and which pool of the peer is read.
  void describe(PeerGreeting& greeting) const;
  /// Opens the peer's pool. True: it is read from now on, and the peer must be notified.
  bool open(const PeerGreeting& greeting);
  /// This end's pool with this nonce, which the peer reads; null: no such pool.
  std::shared_ptr<ShmBlobPool> pool_of(uint64_t nonce) const;
  /// Nonce of the peer's pool that is read; 0: no pool.
  uint64_t reads() const { return reads_; }
  /// Returns the Blob of a reference. kCorrupt: not a reference to a Blob of the peer's pool.
  Result<Blob> take(const BlobReference& reference) const;
  /// Closes both pools; Blobs that take() returned stay valid.
  void close();

 private:
  bool is_shared_;
  std::shared_ptr<ShmBlobPool> pool_;
  std::unique_ptr<ShmBlobReader> reader_;
  uint64_t reads_ = 0;
};

}  // namespace primerl
