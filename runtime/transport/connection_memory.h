/// ConnectionMemory: the shared memory of a connection whose processes are on one machine: a pool
/// for the large Blobs that this end sends, and a reader of the peer's pool.
///
///   greetings   each end tells where its pool is, the other opens it
///   reads       and tells so; from then on Blobs of the pool are sent as references
///
/// What an end cannot open, or has no room for, is sent on the bulk lane as usual. The pool is
/// freed with the connection, so the death of a peer frees what it held.
///
/// Not thread-safe: lives on the I/O thread. The pool itself is also used by the threads that send.
#pragma once

#include <memory>

#include "runtime/transport/shm_blobs.h"
#include "runtime/wire/peer_frame.h"

namespace primerl {

class ConnectionMemory {
 public:
  /// 0, or when no memory is available: nothing is shared.
  explicit ConnectionMemory(uint64_t pool_bytes_max);

  /// Fills in where the pool is, and which pool of the peer is read.
  void describe(PeerGreeting& greeting) const;
  /// Opens the peer's pool. True: it is read from now on, and the peer must be told.
  bool open(const PeerGreeting& greeting);
  /// Our pool with this nonce, which the peer reads; null: no such pool.
  std::shared_ptr<ShmBlobPool> pool_of(uint64_t nonce) const;
  /// Nonce of the peer's pool that is read; 0: none.
  uint64_t reads() const { return reads_; }
  /// kCorrupt: not a reference to a Blob of the peer's pool.
  Result<Blob> take(const BlobReference& reference) const;
  /// Closes both pools; Blobs that were taken stay valid.
  void close();

 private:
  bool is_shared_;
  std::shared_ptr<ShmBlobPool> pool_;
  std::unique_ptr<ShmBlobReader> reader_;
  uint64_t reads_ = 0;
};

}  // namespace primerl
