/// SentRequests: the GenerateRequests of one tenant that an actor sent for clients and that have no
/// completion yet, and the reports of them to its router. The gateway and the tinker actor have one
/// for each tenant.
///
/// A request that no client waits for any more is cancelled. Its completion still comes, and ends
/// its count. Plain values with fields(); touched by the actor alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "actors/messages/generation.h"
#include "graph/base/services.h"
#include "graph/tenant.h"

namespace primerl {

struct SentRequests {
  int64_t num_inflight = 0;         // sent, and not answered
  std::vector<uint64_t> answered;   // to be reported to the router
  std::vector<uint64_t> to_cancel;  // requests
  std::set<uint64_t> cancelled;     // requests whose completion has no client

  void cancel(uint64_t request) {
    cancelled.insert(request);
    to_cancel.push_back(request);
  }
  /// A completion has come. True: its request was cancelled, and is not counted any more.
  bool end_cancelled(uint64_t request);
  /// The router's state is gone, so no request in flight will be answered.
  void forget_router();
  /// The newest of `to_cancel`, at most kCancelRequestsMax.
  Cancel next_cancel();
};

/// Sends the cancels of all tenants, at most `count_max` messages: `send` gets slot and Cancel.
template <class Tenants, class Send>
void send_cancels_of(Tenants& tenants, int64_t count_max, const Send& send) {
  int64_t num_sent = 0;
  for (auto& [slot, tenant] : tenants)
    for (; !tenant.to_cancel.empty() && num_sent < count_max; ++num_sent)
      send(slot, tenant.next_cancel());
}

/// Most requests of the tenant in flight: its own limit, if it has one, within that of all.
int64_t inflight_limit(const Tenant& tenant, int64_t max_inflight);

/// The tenant with the fewest requests in flight for its share, of those below their limits for
/// which `may_send` is true; none if all tenants together have `max_inflight`.
template <class Tenants, class MaySend>
TenantSlot least_loaded(const Services& services, const Tenants& tenants, int64_t max_inflight,
                        const MaySend& may_send) {
  TenantSlot next;
  double least = 0;
  int64_t num_inflight = 0;
  for (const auto& [slot, tenant] : tenants) num_inflight += tenant.num_inflight;
  if (num_inflight >= max_inflight) return next;
  for (const auto& [slot, tenant] : tenants) {
    const Tenant& facts = services.tenant(slot);
    if (!may_send(slot, tenant) || tenant.num_inflight >= inflight_limit(facts, max_inflight))
      continue;
    const double load = static_cast<double>(tenant.num_inflight + 1) / std::max(facts.share, 1e-9);
    if (!next.is_none() && load >= least) continue;
    next = slot;
    least = load;
  }
  return next;
}

}  // namespace primerl
