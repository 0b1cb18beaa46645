/// ConnectionMemory: the shared memory of a link whose processes are on one machine: a pool for the
/// large Blobs that this end sends, and a reader of the peer's.
///
///   greetings   each end says where its pool is, the other opens it
///   reads       and says so; from then on Blobs of the pool travel as references
///
/// What an end cannot open, or has no room for, travels by the bulk connection as ever. The pool
/// goes with the link, so the death of a peer frees what it held.
///
/// Not thread-safe: lives on the I/O thread. The pool itself is used by senders, too.
#pragma once

#include <memory>

#include "runtime/transport/shm_blobs.h"
#include "runtime/wire/peer_frame.h"

namespace primerl {

class ConnectionMemory {
 public:
  /// 0, or no memory to be had: nothing is shared.
  explicit ConnectionMemory(uint64_t pool_bytes_max);

  /// Where the pool is, and which one of the peer's is read.
  void describe(PeerGreeting& greeting) const;
  /// Opens the peer's pool. True: it is read from now on, which the peer must be told.
  bool open(const PeerGreeting& greeting);
  /// The pool that `nonce` names, as the peer reads it; null: none of ours.
  std::shared_ptr<ShmBlobPool> pool_of(uint64_t nonce) const;
  /// Of the peer's pool that is read; 0: none.
  uint64_t reads() const { return reads_; }
  /// kCorrupt: no reference to a Blob of the peer's pool.
  Result<Blob> take(const BlobReference& reference) const;
  /// Both pools are let go of; Blobs that were taken live on.
  void close();

 private:
  bool is_shared_;
  std::shared_ptr<ShmBlobPool> pool_;
  std::unique_ptr<ShmBlobReader> reader_;
  uint64_t reads_ = 0;
};

}  // namespace primerl
