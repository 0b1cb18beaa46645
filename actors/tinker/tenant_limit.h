/// TenantLimit: an amount that several tenants use, so that none of them can use up all.
///
/// Half of it is divided equally: each tenant can always use its part. The other half is for the
/// tenant that needs more. So one tenant alone can use everything.
///
/// A state machine: no clock, no thread. Its state is plain values with fields().
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "graph/base/ids.h"

namespace primerl::tinker {

class TenantLimit {
 public:
  explicit TenantLimit(uint64_t most) : most_(most) {}

  /// Whether the tenant may use `amount` more. `num_tenants`: all that may use it now.
  bool has_space(TenantSlot tenant, uint64_t amount, size_t num_tenants) const;
  void add(TenantSlot tenant, uint64_t amount);
  /// At most what was added.
  void subtract(TenantSlot tenant, uint64_t amount);

  uint64_t most() const { return most_; }
  uint64_t used() const;  // by all
  uint64_t used_by(TenantSlot tenant) const;

  template <class F>
  static void fields(F& f) {
    f("used", &TenantLimit::used_);
  }

 private:
  uint64_t most_;
  std::map<TenantSlot, uint64_t> used_;  // no tenant with 0
};

}  // namespace primerl::tinker
