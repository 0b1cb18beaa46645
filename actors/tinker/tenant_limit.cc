#include "actors/tinker/tenant_limit.h"

#include <algorithm>

#include "graph/base/assert.h"

namespace primerl::tinker {

uint64_t TenantLimit::used() const {
  uint64_t sum = 0;
  for (const auto& [tenant, amount] : used_) sum += amount;
  return sum;
}

uint64_t TenantLimit::used_by(TenantSlot tenant) const {
  const auto found = used_.find(tenant);
  return found == used_.end() ? 0 : found->second;
}

bool TenantLimit::has_space(TenantSlot tenant, uint64_t amount, size_t num_tenants) const {
  const uint64_t sum = used();
  if (sum > most_ || amount > most_ - sum) return false;
  const uint64_t part = most_ / 2 / std::max<size_t>(num_tenants, 1);
  const uint64_t own = used_by(tenant);
  if (own + amount <= part) return true;
  // The unused parts of the other tenants stay free.
  uint64_t used_of_parts = 0;
  size_t num_others = 0;
  for (const auto& [other, used] : used_) {
    if (other == tenant) continue;
    ++num_others;
    used_of_parts += std::min(used, part);
  }
  const size_t num_parts = std::max(num_others, std::max<size_t>(num_tenants, 1) - 1);
  const uint64_t reserved = part * num_parts - used_of_parts;
  return reserved <= most_ - sum && amount <= most_ - sum - reserved;
}

void TenantLimit::add(TenantSlot tenant, uint64_t amount) {
  if (amount > 0) used_[tenant] += amount;
}

void TenantLimit::subtract(TenantSlot tenant, uint64_t amount) {
  if (amount == 0) return;
  const auto found = used_.find(tenant);
  CHECK(found != used_.end() && found->second >= amount, "more is given back than was used");
  found->second -= amount;
  if (found->second == 0) used_.erase(found);
}

}  // namespace primerl::tinker
