/// FairShares: which tenant is served next, by tokens served.
///
/// Every tenant has a share, a number above 0; only the ratio of shares matters. The tokens that a
/// tenant was served are divided by its share, and the tenant with the smallest quotient is next.
/// Tenants that all have work therefore get tokens in proportion to their shares, whatever the size
/// of one piece of work, and a tenant alone gets everything.
///
/// A tenant that returns after a pause starts with the quotient of the least served active tenant.
/// If no tenant is active, it starts with the quotient of the most served one. Unused capacity is
/// therefore not credited to it later. This is start-time fair queueing (Goyal, Vin and Cheng
/// 1996): deficit round robin without the rounds.
///
/// A value; not thread-safe. Its size grows with the largest slot that it was called with.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/base/ids.h"

namespace primerl {

class FairShares {
 public:
  FairShares() = default;
  /// Index: tenant slot. A tenant beyond the end has share 1.
  explicit FairShares(const std::vector<double>& shares);

  /// `tenant` has one more piece of work, or one less.
  void enter(TenantSlot tenant);
  void leave(TenantSlot tenant);
  void charge(TenantSlot tenant, int64_t num_tokens);
  /// Later charges count by this share, above 0.
  void set_share(TenantSlot tenant, double share) { at(tenant).share = share; }
  /// `tenant`, which has no work, has been served nothing: another one begins in its slot.
  void forget(TenantSlot tenant);
  /// Tokens served, divided by the share. The tenant with the smallest value is next.
  double served(TenantSlot tenant) const {
    return tenant.index() < tenants_.size() ? tenants_[tenant.index()].served : 0;
  }
  /// Tokens that `tenant` has had beyond its share, compared with a tenant whose served() is
  /// `served`.
  double tokens_ahead(TenantSlot tenant, double served) const {
    if (tenant.index() >= tenants_.size()) return -served;
    const TenantState& one = tenants_[tenant.index()];
    return (one.served - served) * one.share;
  }

 private:
  struct TenantState {
    double share = 1;
    double served = 0;
    int64_t num_here = 0;
  };

  TenantState& at(TenantSlot tenant);
  std::optional<double> least_served() const;

  std::vector<TenantState> tenants_;
  double most_served_ = 0;  // largest of all tenants
};

}  // namespace primerl
