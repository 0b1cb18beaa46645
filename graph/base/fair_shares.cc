#include "graph/base/fair_shares.h"

#include <algorithm>

#include "graph/base/assert.h"

namespace primerl {

FairShares::FairShares(const std::vector<double>& shares) {
  for (const double share : shares) {
    CHECK(share > 0, "a share is a number above 0");
    tenants_.push_back({share, 0, 0});
  }
}

FairShares::TenantState& FairShares::at(TenantSlot tenant) {
  if (tenant.index() >= tenants_.size()) tenants_.resize(tenant.index() + 1);
  return tenants_[tenant.index()];
}

std::optional<double> FairShares::least_served() const {
  std::optional<double> least;
  for (const TenantState& one : tenants_)
    if (one.num_here > 0) least = least ? std::min(*least, one.served) : one.served;
  return least;
}

void FairShares::enter(TenantSlot tenant) {
  TenantState& one = at(tenant);
  if (one.num_here == 0) one.served = std::max(one.served, least_served().value_or(most_served_));
  ++one.num_here;
}

void FairShares::leave(TenantSlot tenant) {
  TenantState& one = at(tenant);
  CHECK(one.num_here > 0, "a tenant left that had not entered");
  --one.num_here;
}

void FairShares::forget(TenantSlot tenant) {
  if (tenant.index() >= tenants_.size()) return;
  TenantState& one = tenants_[tenant.index()];
  CHECK(one.num_here == 0, "a tenant that has work was forgotten");
  one.served = 0;
}

void FairShares::charge(TenantSlot tenant, int64_t num_tokens) {
  TenantState& one = at(tenant);
  one.served += static_cast<double>(num_tokens) / one.share;
  most_served_ = std::max(most_served_, one.served);
}

}  // namespace primerl
