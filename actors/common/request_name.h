/// How requests and sessions are named where several tenants meet: (tenant, request), and the
/// engine's SequenceId made of both, so that Prefill and Decode name one sequence without asking
/// each other.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <set>

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

struct SessionName {
  TenantSlot tenant;
  uint64_t session = 0;
  friend constexpr auto operator<=>(const SessionName&, const SessionName&) = default;
  template <class F>
  static void fields(F& f) {
    f("tenant", &SessionName::tenant)("session", &SessionName::session);
  }
};

inline constexpr int kRequestBits = 48;

/// False for a request number or slot that does not fit into a SequenceId.
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

/// Requests whose end was asked for, because a cancel (feedback) may overtake its request
/// (forward). Request numbers are never used twice, so a name kept in vain does no harm; the oldest
/// are forgotten.
class CancelledEarly {
 public:
  static constexpr size_t kNamesMax = 4096;

  void add(RequestName name) {
    if (!names_.insert(name).second) return;
    order_.push_back(name);
    if (order_.size() <= kNamesMax) return;
    names_.erase(order_.front());
    order_.pop_front();
  }
  bool contains(RequestName name) const { return names_.count(name) > 0; }

  template <class F>
  static void fields(F& f) {
    f("names", &CancelledEarly::names_)("order", &CancelledEarly::order_);
  }

 private:
  std::set<RequestName> names_;
  std::deque<RequestName> order_;  // oldest first
};

}  // namespace primerl
