#include "kernels/engine/slot_claims.h"

#include <utility>

#include "graph/base/result.h"

namespace primerl {

SlotClaims::SlotClaims(const std::vector<double>& shares, int32_t max_running)
    : max_running_(max_running), is_divided_(shares.size() > 1) {
  for (const double share : shares) {
    One& one = tenants_.emplace_back();
    one.part = one.peak_before = static_cast<int32_t>(share * max_running);
    num_kept_ += one.num_kept();
  }
}

/// A tenant beyond the shares has no part of its own: it runs in what is lent.
template <class Change>
void SlotClaims::change(TenantSlot tenant, const Change& change) {
  if (tenant.index() >= tenants_.size()) tenants_.resize(tenant.index() + 1);
  One& one = tenants_[tenant.index()];
  num_kept_ -= one.num_kept();
  change(one);
  num_kept_ += one.num_kept();
}

void SlotClaims::enter(TenantSlot tenant) {
  change(tenant, [](One& one) { one.peak = std::max(one.peak, ++one.num_here); });
}

void SlotClaims::leave(TenantSlot tenant) {
  change(tenant, [](One& one) { --one.num_here; });
}

void SlotClaims::admit(TenantSlot tenant) {
  change(tenant, [](One& one) { ++one.num_admitted; });
  ++num_admitted_;
}

void SlotClaims::release(TenantSlot tenant) {
  change(tenant, [](One& one) {
    CHECK(one.num_admitted > 0, "a sequence gave a place back that it did not have");
    --one.num_admitted;
  });
  --num_admitted_;
}

void SlotClaims::step() {
  if (++num_steps_ < kWindow) return;
  num_steps_ = num_kept_ = 0;
  for (One& one : tenants_) {
    one.peak_before = std::exchange(one.peak, one.num_here);
    num_kept_ += one.num_kept();
  }
}

bool SlotClaims::may_admit(TenantSlot tenant) const {
  if (num_admitted_ >= max_running_) return false;
  if (!is_divided_) return true;
  const bool is_known = tenant.index() < tenants_.size();
  return (is_known && tenants_[tenant.index()].num_unused() > 0) ||
         num_admitted_ + num_kept_ < max_running_;
}

}  // namespace primerl
