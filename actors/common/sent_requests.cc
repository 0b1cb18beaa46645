#include "actors/common/sent_requests.h"

namespace primerl {

bool SentRequests::end_cancelled(uint64_t request) {
  if (cancelled.erase(request) == 0) return false;
  --num_inflight;
  return true;
}

void SentRequests::forget_router() {
  cancelled.clear();
  to_cancel.clear();
  answered.clear();
  num_inflight = 0;
}

Cancel SentRequests::next_cancel() {
  const size_t count = std::min(to_cancel.size(), static_cast<size_t>(kCancelRequestsMax));
  const auto begin = to_cancel.end() - static_cast<std::ptrdiff_t>(count);
  Cancel cancel;
  cancel.requests.assign(begin, to_cancel.end());
  to_cancel.erase(begin, to_cancel.end());
  return cancel;
}

int64_t inflight_limit(const Tenant& tenant, int64_t max_inflight) {
  return tenant.inflight > 0 ? std::min(tenant.inflight, max_inflight) : max_inflight;
}

}  // namespace primerl
