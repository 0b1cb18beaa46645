#include "actors/tinker/request_order.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace primerl::tinker {

RequestOrder::Lane& RequestOrder::lane_of(const OfferedRequest& offered) {
  Lane& lane = lanes_[offered.lane];
  lane.tenant = offered.tenant;
  return lane;
}

Result<Admission> RequestOrder::repeat_of(const Seen& first, const OfferedRequest& offered) const {
  if (first.digest == offered.digest) return Admission{Admission::Kind::kRepeat, first.request};
  return error(Code::kExists, "request {} of '{}' was sent before with another body", offered.seq,
               offered.lane)
      .note("a repeat has the same bytes; a new request has a new number");
}

void RequestOrder::remember(Lane& lane, int64_t seq, Seen seen) {
  lane.seen.emplace(seq, std::move(seen));
  if (lane.seen.size() > limits_.seen_max) forget_oldest(lane);
}

/// The smallest number may be the newest: that of a program with few samples beside one with many.
/// Requests are numbered as they come.
void RequestOrder::forget_oldest(Lane& lane) {
  const auto oldest = std::ranges::min_element(
      lane.seen, {}, [](const auto& each) { return each.second.request; });
  lane.forgotten = std::max(lane.forgotten, oldest->first);
  lane.seen.erase(oldest);
}

void RequestOrder::stop_waiting(Lane& lane, std::map<int64_t, Waiting>::iterator entry) {
  waiting_bytes_.subtract(lane.tenant, entry->second.num_bytes);
  lane.waiting.erase(entry);
}

Result<Admission> RequestOrder::wait(Lane& lane, const OfferedRequest& offered, Time now) {
  if (const auto found = lane.waiting.find(offered.seq); found != lane.waiting.end())
    return repeat_of(found->second.seen, offered);
  if (lane.waiting.size() >= limits_.waiting_max)
    return error(Code::kExhausted, "{} requests of '{}' wait for request {}", lane.waiting.size(),
                 offered.lane, lane.next);
  if (!waiting_bytes_.has_space(offered.tenant, offered.num_bytes, offered.num_tenants))
    return error(Code::kExhausted,
                 "requests that wait for their turn have {} bytes, {} of them of this tenant; at "
                 "most {}, and {} tenants share them",
                 waiting_bytes_.used(), waiting_bytes_.used_by(offered.tenant),
                 waiting_bytes_.most(), offered.num_tenants);
  waiting_bytes_.add(offered.tenant, offered.num_bytes);
  lane.waiting.emplace(offered.seq,
                       Waiting{{offered.digest, offered.request}, offered.num_bytes, now});
  return Admission{Admission::Kind::kWait, offered.request};
}

Result<Admission> RequestOrder::offer(const OfferedRequest& offered, Time now) {
  Lane& lane = lane_of(offered);
  if (offered.seq > lane.next) return wait(lane, offered, now);
  if (offered.seq < lane.next) {
    if (const auto found = lane.seen.find(offered.seq); found != lane.seen.end())
      return repeat_of(found->second, offered);
    return error(Code::kCancelled, "request {} of '{}' is long past, the next is {}", offered.seq,
                 offered.lane, lane.next);
  }
  remember(lane, offered.seq, {offered.digest, offered.request});
  ++lane.next;
  return Admission{Admission::Kind::kRun, offered.request};
}

Result<Admission> RequestOrder::offer_unordered(const OfferedRequest& offered) {
  Lane& lane = lane_of(offered);
  if (const auto found = lane.seen.find(offered.seq); found != lane.seen.end())
    return repeat_of(found->second, offered);
  if (offered.seq <= lane.forgotten && !offered.may_run_again)
    return error(Code::kCancelled, "request {} of '{}' is long past", offered.seq, offered.lane);
  remember(lane, offered.seq, {offered.digest, offered.request});
  return Admission{Admission::Kind::kRun, offered.request};
}

void RequestOrder::renew(const std::string& name, int64_t seq, uint64_t request) {
  const auto lane = lanes_.find(name);
  if (lane == lanes_.end()) return;
  if (const auto found = lane->second.seen.find(seq); found != lane->second.seen.end())
    found->second.request = request;
}

std::vector<uint64_t> RequestOrder::pop_ready(const std::string& name) {
  std::vector<uint64_t> ready;
  const auto found = lanes_.find(name);
  if (found == lanes_.end()) return ready;
  Lane& lane = found->second;
  for (auto entry = lane.waiting.begin(); entry != lane.waiting.end() && entry->first == lane.next;
       entry = lane.waiting.begin()) {
    ready.push_back(entry->second.seen.request);
    remember(lane, lane.next++, entry->second.seen);
    stop_waiting(lane, entry);
  }
  return ready;
}

std::vector<std::pair<uint64_t, int64_t>> RequestOrder::expire(Time now) {
  std::vector<std::pair<uint64_t, int64_t>> expired;
  for (auto& [name, lane] : lanes_)
    for (auto entry = lane.waiting.begin(); entry != lane.waiting.end();) {
      const auto after = std::next(entry);
      if (now - entry->second.since >= limits_.wait_max) {
        expired.emplace_back(entry->second.seen.request, lane.next);
        stop_waiting(lane, entry);
      }
      entry = after;
    }
  return expired;
}

Time RequestOrder::next_expiry() const {
  Time next = Time::from_nanoseconds(std::numeric_limits<int64_t>::max());
  for (const auto& [name, lane] : lanes_)
    for (const auto& [seq, waiting] : lane.waiting)
      next = std::min(next, waiting.since + limits_.wait_max);
  return next;
}

std::vector<uint64_t> RequestOrder::drop(const std::string& name) {
  std::vector<uint64_t> waited;
  const auto found = lanes_.find(name);
  if (found == lanes_.end()) return waited;
  for (const auto& [seq, waiting] : found->second.waiting) {
    waited.push_back(waiting.seen.request);
    waiting_bytes_.subtract(found->second.tenant, waiting.num_bytes);
  }
  lanes_.erase(found);
  return waited;
}

size_t RequestOrder::num_waiting(const std::string& name) const {
  const auto found = lanes_.find(name);
  return found == lanes_.end() ? 0 : found->second.waiting.size();
}

}  // namespace primerl::tinker
