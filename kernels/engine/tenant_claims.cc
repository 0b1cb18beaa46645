#include "kernels/engine/tenant_claims.h"

#include <utility>

#include "graph/base/result.h"

namespace primerl {

TenantClaims::TenantClaims(const std::vector<double>& shares, int32_t total, Waiting waiting)
    : total_(total), waiting_(waiting), is_divided_(shares.size() > 1) {
  for (const double share : shares) {
    One& one = tenants_.emplace_back();
    one.part = one.peak_before = static_cast<int32_t>(share * total);
    num_kept_ += num_kept(one);
  }
}

int32_t TenantClaims::num_kept(const One& one) const {
  if (waiting_ == Waiting::kTakesItsTurn && one.num_wanted > one.num_taken) return 0;
  return std::max(std::min(one.part, std::max(one.peak, one.peak_before)) - one.num_taken, 0);
}

/// A tenant beyond the list of shares has no part of its own: it runs in lent capacity.
template <class Change>
void TenantClaims::change(TenantSlot tenant, const Change& change) {
  if (tenant.index() >= tenants_.size()) tenants_.resize(tenant.index() + 1);
  One& one = tenants_[tenant.index()];
  num_kept_ -= num_kept(one);
  change(one);
  num_kept_ += num_kept(one);
}

void TenantClaims::want(TenantSlot tenant, int32_t count) {
  change(tenant, [count](One& one) {
    one.num_wanted += count;
    one.peak = std::max(one.peak, one.num_wanted);
  });
}

void TenantClaims::take(TenantSlot tenant, int32_t count) {
  change(tenant, [count](One& one) {
    one.num_taken += count;
    CHECK(one.num_taken >= 0, "a tenant released more than it had");
  });
  num_taken_ += count;
}

void TenantClaims::end(TenantSlot tenant) {
  change(tenant, [](One& one) {
    CHECK(one.num_wanted == 0 && one.num_taken == 0, "a tenant left with what it uses");
    one.peak = one.peak_before = 0;
  });
}

void TenantClaims::begin(TenantSlot tenant) {
  change(tenant, [](One& one) { one.peak = one.peak_before = one.part; });
}

void TenantClaims::set_share(TenantSlot tenant, double share) {
  change(tenant, [&](One& one) { one.part = static_cast<int32_t>(share * total_); });
}

void TenantClaims::step() {
  if (++num_steps_ < kWindow) return;
  num_steps_ = num_kept_ = 0;
  for (One& one : tenants_) {
    one.peak_before = std::exchange(one.peak, one.num_wanted);
    num_kept_ += num_kept(one);
  }
}

bool TenantClaims::may_take(TenantSlot tenant, int32_t count) const {
  if (!is_divided_) return true;
  const One one = tenant.index() < tenants_.size() ? tenants_[tenant.index()] : One();
  return one.num_taken == 0 || one.num_taken + count <= one.part ||
         num_taken_ + count + num_kept_ - num_kept(one) <= total_;
}

int32_t TenantClaims::num_beyond(TenantSlot tenant) const {
  if (!is_divided_ || tenant.index() >= tenants_.size()) return 0;
  return tenants_[tenant.index()].num_taken - tenants_[tenant.index()].part;
}

}  // namespace primerl
