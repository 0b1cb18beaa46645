/// Names of requests and sessions that are unique across tenants: (tenant, request). The engine's
/// SequenceId is computed from both, so Prefill and Decode use the same id without asking each
/// other.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "graph/base/ids.h"
#include "kernels/engine/engine.h"

namespace primerl {

struct RequestName {
  TenantSlot tenant;
  uint64_t request = 0;
  friend constexpr auto operator<=>(const RequestName&, const RequestName&) = default;
  template <class F>
  static void fields(F& f) {
    f("tenant", &RequestName::tenant)("request", &RequestName::request);
  }
};

/// Each of a tenant's weights keys has its sessions: a number of one says nothing of another.
struct SessionName {
  TenantSlot tenant;
  uint64_t session = 0;
  AdapterId adapter{};  // as in GenerateRequest; none: the tenant's moving key
  friend constexpr auto operator<=>(const SessionName&, const SessionName&) = default;
  template <class F>
  static void fields(F& f) {
    f("tenant", &SessionName::tenant)("session", &SessionName::session)("adapter",
                                                                        &SessionName::adapter);
  }
};

inline constexpr int kRequestBits = 48;

/// False if the request number or the tenant slot is too large for a SequenceId.
inline bool is_nameable(RequestName name) {
  return name.request >> kRequestBits == 0 && name.tenant.value < (1U << (64 - kRequestBits));
}
inline SequenceId sequence_of(RequestName name) {
  CHECK(is_nameable(name), "a request has no sequence id");
  return SequenceId((static_cast<uint64_t>(name.tenant.value) << kRequestBits) | name.request);
}
inline RequestName request_of(SequenceId id) {
  return {TenantSlot(static_cast<uint32_t>(id.value >> kRequestBits)),
          id.value & ((uint64_t{1} << kRequestBits) - 1)};
}

/// Names of requests that were cancelled or aborted. They are kept because a cancel (feedback) may
/// overtake its request (forward). Request numbers are never reused, so a name that is kept too
/// long does no harm. Above kNamesMax names, the oldest is dropped.
template <class Known>
class RequestsByAge {
 public:
  static constexpr size_t kNamesMax = 4096;

  /// Adds a name. If it is present already, its first value is kept.
  void add(RequestName name, Known known = {}) {
    if (!index().emplace(name, known).second) return;
    order_.emplace_back(name, std::move(known));
    if (order_.size() <= kNamesMax) return;
    by_name_.erase(order_.front().first);
    order_.pop_front();
  }
  /// Forgets the names of a tenant that has left.
  void drop(TenantSlot tenant) {
    const auto is_of = [tenant](const auto& each) { return each.first.tenant == tenant; };
    std::erase_if(order_, is_of);
    std::erase_if(by_name_, is_of);
  }
  /// Null for an unknown name. Valid until the next call.
  const Known* find(RequestName name) const {
    const auto found = index().find(name);
    return found == index().end() ? nullptr : &found->second;
  }
  bool contains(RequestName name) const { return find(name) != nullptr; }

  template <class F>
  static void fields(F& f) {
    f("order", &RequestsByAge::order_);
  }

 private:
  std::map<RequestName, Known>& index() const {
    if (by_name_.size() != order_.size()) by_name_ = {order_.begin(), order_.end()};
    return by_name_;
  }

  std::deque<std::pair<RequestName, Known>> order_;  // oldest first
  mutable std::map<RequestName, Known> by_name_;     // built from order_, so it is not saved
};

struct NothingKnown {
  template <class F>
  static void fields(F&) {}
};
using CancelledEarly = RequestsByAge<NothingKnown>;

}  // namespace primerl
