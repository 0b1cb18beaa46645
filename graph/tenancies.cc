#include "graph/tenancies.h"

#include <algorithm>

#include "graph/base/random.h"

namespace primerl {

Result<uint32_t> Tenancies::begin(TenantSlot slot, const std::string& name) {
  const auto of_slot = by_slot_.find(slot);
  const auto of_name = by_name_.find(name);
  uint32_t number = 0;
  if (of_slot != by_slot_.end()) number = std::max(number, of_slot->second + 1);
  if (of_name != by_name_.end()) number = std::max(number, of_name->second + 1);
  if (number > kTenancyMax)
    return error(Code::kExhausted, "slot {} or tenant '{}' was used {} times", slot, name, number)
        .note("join under another name, or start the graph again");
  by_slot_[slot] = by_name_[name] = number;
  return number;
}

std::string tenancy_name(const Tenant& tenant) { return tenancy_salt(tenant.name, tenant); }

std::string tenancy_salt(std::string_view salt, const Tenant& tenant) {
  return tenant.tenancy == 0 ? std::string(salt) : fmt::format("{}~{}", salt, tenant.tenancy);
}

uint64_t tenancy_key(const Tenant& tenant, uint64_t seed) {
  const uint64_t key = stable_hash(tenant.name, seed);
  return tenant.tenancy == 0 ? key : mix(key, tenant.tenancy);
}

}  // namespace primerl
