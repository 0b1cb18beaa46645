#include "runtime/transport/link_outbox.h"

namespace primerl {

void add(TransferCounts& sum, const TransferCounts& more) {
  sum.num_parcels += more.num_parcels;
  sum.num_messages += more.num_messages;
  sum.num_bytes += more.num_bytes;
}

TransferCounts minus(TransferCounts from, const TransferCounts& less) {
  from.num_parcels -= less.num_parcels;
  from.num_messages -= less.num_messages;
  from.num_bytes -= less.num_bytes;
  return from;
}

Status LinkOutbox::put(ParcelEncoder& encoded, uint64_t num_messages, bool& is_first) {
  const auto bytes = encoded.bytes();
  const TransferCounts counts = {1, num_messages, bytes.size() + encoded.bulk_bytes()};
  const std::lock_guard lock(mutex_);
  if (closed_) return *closed_;
  const TransferCounts open = minus(minus(sent_, acknowledged_), abandoned_);
  if (open.num_parcels >= limits_.unacknowledged_parcels_max)
    return error(Code::kExhausted, "{} parcels wait for acknowledgement, the limit",
                 open.num_parcels)
        .note("the hosts' credits should bound this: the peer acknowledges nothing");
  if (counts.num_bytes > limits_.unacknowledged_bytes_max - open.num_bytes)
    return error(Code::kExhausted,
                 "{} bytes wait for acknowledgement, {} more are above the limit of {}",
                 open.num_bytes, counts.num_bytes, limits_.unacknowledged_bytes_max);
  is_first = waiting_.empty();
  const size_t place = waiting_.bytes.size();
  waiting_.bytes.insert(waiting_.bytes.end(), bytes.begin(), bytes.end());
  number_bulk(std::span(waiting_.bytes).subspan(place), next_bulk_);
  const auto num_bulk = static_cast<uint32_t>(encoded.bulk().size());
  next_bulk_ += num_bulk;
  for (Blob& piece : encoded.bulk()) waiting_.bulk.push_back(std::move(piece));
  waiting_.marks.push_back({waiting_.bytes.size(), num_bulk, counts});
  add(sent_, counts);
  return ok();
}

bool LinkOutbox::take(Outgoing& outgoing) {
  const std::lock_guard lock(mutex_);
  if (waiting_.empty()) return false;
  // The next ones will need about as much memory again.
  const size_t size = waiting_.bytes.size();
  outgoing = std::move(waiting_);
  waiting_ = Outgoing();
  waiting_.bytes.reserve(std::min(size, size_t{1} << 20));
  return true;
}

void LinkOutbox::acknowledge(const TransferCounts& counts) {
  const std::lock_guard lock(mutex_);
  if (!closed_) add(acknowledged_, counts);
}

void LinkOutbox::close(Error why) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  closed_ = std::move(why);
  abandoned_ = minus(sent_, acknowledged_);
  waiting_ = Outgoing();
}

void LinkOutbox::add_to(LinkStatus& status) const {
  const std::lock_guard lock(mutex_);
  status.sent = sent_;
  status.acknowledged = acknowledged_;
  status.abandoned = abandoned_;
  status.unacknowledged = minus(minus(sent_, acknowledged_), abandoned_);
}

bool LinkOutbox::is_settled() const {
  const std::lock_guard lock(mutex_);
  return minus(minus(sent_, acknowledged_), abandoned_) == TransferCounts();
}

}  // namespace primerl
