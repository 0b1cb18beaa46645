#include "runtime/transport/connection_outbox.h"

#include <algorithm>
#include <utility>

namespace primerl {

namespace {

/// The large pieces of a batch. Pieces that fit are copied into the pool, and freed again if they
/// are not sent.
class Pieces {
 public:
  Pieces(std::shared_ptr<ShmBlobPool> pool, const std::vector<Blob>& bulk,
         uint64_t shared_bytes_min)
      : pool_(std::move(pool)) {
    pieces_.reserve(bulk.size());
    for (const Blob& each : bulk) {
      BulkPiece& piece = pieces_.emplace_back();
      if (pool_ != nullptr && each.size() >= shared_bytes_min)
        if (auto put = pool_->put(each.bytes()); put.ok()) piece.ref = *put;
      if (!piece.ref) piece.bytes = each;
    }
  }
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;
  ~Pieces() {
    for (const BulkPiece& piece : pieces_)
      if (piece.ref) pool_->cancel(*piece.ref);
  }
  std::vector<BulkPiece> release() { return std::exchange(pieces_, {}); }

 private:
  const std::shared_ptr<ShmBlobPool> pool_;
  std::vector<BulkPiece> pieces_;
};

}  // namespace

void add(TransferCounts& sum, const TransferCounts& more) {
  sum.num_batches += more.num_batches;
  sum.num_messages += more.num_messages;
  sum.num_bytes += more.num_bytes;
}

TransferCounts minus(TransferCounts from, const TransferCounts& less) {
  from.num_batches -= less.num_batches;
  from.num_messages -= less.num_messages;
  from.num_bytes -= less.num_bytes;
  return from;
}

Status ConnectionOutbox::put(BatchEncoder& encoded, uint64_t num_messages, bool& is_first) {
  const auto bytes = encoded.bytes();
  const TransferCounts counts = {1, num_messages, bytes.size() + encoded.bulk_bytes()};
  // It copies, so it runs before the lock.
  Pieces pieces(pool(), encoded.bulk(), limits_.bulk_bytes_min);
  const std::lock_guard lock(mutex_);
  if (closed_) return *closed_;
  const TransferCounts open = minus(minus(sent_, acknowledged_), abandoned_);
  if (open.num_batches >= limits_.unacknowledged_batches_max)
    return error(Code::kExhausted, "{} batches wait for acknowledgement, the limit",
                 open.num_batches)
        .note("the groups' credits should bound this: the peer acknowledges nothing");
  if (counts.num_bytes > limits_.unacknowledged_bytes_max - open.num_bytes)
    return error(Code::kExhausted,
                 "{} bytes wait for acknowledgement, {} more are above the limit of {}",
                 open.num_bytes, counts.num_bytes, limits_.unacknowledged_bytes_max);
  is_first = waiting_.empty();
  Outgoing::Frame& frame = frame_for(bytes.size());
  const size_t place = frame.bytes.size();
  frame.bytes.insert(frame.bytes.end(), bytes.begin(), bytes.end());
  number_bulk(std::span(frame.bytes).subspan(place), next_bulk_);
  next_bulk_ += encoded.bulk().size();
  frame.num_bulk += encoded.bulk().size();
  for (BulkPiece& piece : pieces.release()) {
    num_blobs_shared_ += piece.ref ? 1 : 0;
    num_bytes_shared_ += piece.ref ? piece.ref->size : 0;
    waiting_.bulk.push_back(std::move(piece));
  }
  encoded.bulk().clear();
  add(frame.counts, counts);
  add(sent_, counts);
  return ok();
}

Outgoing::Frame& ConnectionOutbox::frame_for(size_t batch_bytes) {
  auto& frames = waiting_.frames;
  if (!frames.empty() && frames.back().bytes.size() + batch_bytes <= limits_.frame_bytes)
    return frames.back();
  Outgoing::Frame& frame = frames.emplace_back();
  // After a full frame, the next one will probably be full, too.
  if (frames.size() > 1) frame.bytes.reserve(std::max<size_t>(batch_bytes, limits_.frame_bytes));
  return frame;
}

bool ConnectionOutbox::take(Outgoing& outgoing) {
  const std::lock_guard lock(mutex_);
  if (waiting_.empty()) return false;
  outgoing = std::exchange(waiting_, Outgoing());
  return true;
}

void ConnectionOutbox::acknowledge(const TransferCounts& counts) {
  const std::lock_guard lock(mutex_);
  if (!closed_) add(acknowledged_, counts);
}

void ConnectionOutbox::close(Error why) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  closed_ = std::move(why);
  abandoned_ = minus(sent_, acknowledged_);
  waiting_ = Outgoing();
  pool_.reset();
}

void ConnectionOutbox::use_pool(std::shared_ptr<ShmBlobPool> pool) {
  const std::lock_guard lock(mutex_);
  if (!closed_) pool_ = std::move(pool);
}

std::shared_ptr<ShmBlobPool> ConnectionOutbox::pool() const {
  const std::lock_guard lock(mutex_);
  return pool_;
}

void ConnectionOutbox::add_to(ConnectionStatus& status) const {
  const std::lock_guard lock(mutex_);
  status.sent = sent_;
  status.acknowledged = acknowledged_;
  status.abandoned = abandoned_;
  status.num_blobs_shared = num_blobs_shared_;
  status.num_bytes_shared = num_bytes_shared_;
  status.unacknowledged = minus(minus(sent_, acknowledged_), abandoned_);
}

bool ConnectionOutbox::is_settled() const {
  const std::lock_guard lock(mutex_);
  return minus(minus(sent_, acknowledged_), abandoned_) == TransferCounts();
}

}  // namespace primerl
