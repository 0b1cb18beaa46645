#include "runtime/transport/connection_memory.h"

namespace primerl {

ConnectionMemory::ConnectionMemory(uint64_t pool_bytes_max) : is_shared_(pool_bytes_max > 0) {
  if (!is_shared_) return;
  auto made = ShmBlobPool::make(pool_bytes_max);
  if (made.ok()) pool_ = std::move(made).value();
}

void ConnectionMemory::describe(PeerGreeting& greeting) const {
  greeting.reads = reads_;
  if (pool_ == nullptr) return;
  const ShmBlobAddress address = pool_->address();
  greeting.pool_pid = address.pid;
  greeting.pool_descriptor = address.descriptor;
  greeting.pool_nonce = address.nonce;
}

bool ConnectionMemory::open(const PeerGreeting& greeting) {
  if (!is_shared_ || greeting.pool_nonce == 0 || greeting.pool_nonce == reads_) return false;
  auto opened =
      ShmBlobReader::open({greeting.pool_pid, greeting.pool_descriptor, greeting.pool_nonce});
  if (!opened.ok()) return false;  // the peer's Blobs then arrive on the bulk lane
  reader_ = std::move(opened).value();
  reads_ = greeting.pool_nonce;
  return true;
}

std::shared_ptr<ShmBlobPool> ConnectionMemory::pool_of(uint64_t nonce) const {
  return pool_ != nullptr && pool_->address().nonce == nonce ? pool_ : nullptr;
}

Result<Blob> ConnectionMemory::take(const BlobReference& reference) const {
  if (reader_ == nullptr) return error(Code::kCorrupt, "a reference to a pool that is not read");
  return reader_->take({reference.slot, reference.turn, reference.offset, reference.object_bytes});
}

void ConnectionMemory::close() {
  is_shared_ = false;
  pool_.reset();
  reader_.reset();
  reads_ = 0;
}

}  // namespace primerl
