/// FairShares: who of several tenants is served next, by deficit in tokens.
///
/// Every tenant has a share, a number above 0 that means something only beside the others'. What is
/// served to one is counted in tokens and divided by the share; next is who has the smallest count.
/// So tenants that all have work get tokens in the proportion of their shares, whatever the size of
/// one piece of work, and who is alone gets everything. Who comes back after a pause starts level
/// with the least served of those who are there, and where nobody is with the most served of those
/// who were: what was idle was lent, and is not owed, to whoever comes first as well. (Start-time
/// fair queueing, Goyal, Vin and Cheng 1996: deficit round robin without the rounds.)
///
/// A value; not thread-safe. Grows with the largest slot it was asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/base/ids.h"

namespace primerl {

class FairShares {
 public:
  FairShares() = default;
  /// Index: tenant slot. A tenant beyond has share 1.
  explicit FairShares(const std::vector<double>& shares);

  /// One more piece of work of `tenant` is there, or one less.
  void enter(TenantSlot tenant);
  void leave(TenantSlot tenant);
  void charge(TenantSlot tenant, int64_t num_tokens);
  /// Tokens served, divided by the share. The smallest is next.
  double served(TenantSlot tenant) const {
    return tenant.index() < tenants_.size() ? tenants_[tenant.index()].served : 0;
  }
  /// Tokens that `tenant` has had beyond its share, beside somebody who was served `served`.
  double tokens_ahead(TenantSlot tenant, double served) const {
    if (tenant.index() >= tenants_.size()) return -served;
    const One& one = tenants_[tenant.index()];
    return (one.served - served) * one.share;
  }

 private:
  struct One {
    double share = 1;
    double served = 0;
    int64_t num_here = 0;
  };

  One& at(TenantSlot tenant);
  std::optional<double> least_served() const;

  std::vector<One> tenants_;
  double most_served_ = 0;  // of all
};

}  // namespace primerl
