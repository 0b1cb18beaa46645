#include "graph/tenant_outside.h"

#include <utility>

namespace primerl {
namespace {

/// Adds the pool that `chosen` asks, and returns its index; -1 if it asks nothing.
int32_t add_pool(const auto& chosen, std::string name, const Tenant& tenant, OutsideSpec& spec) {
  if (chosen.contract == nullptr || !chosen.contract->outside) return -1;
  OutsidePool pool = chosen.contract->outside(chosen.options.get());
  pool.name = std::move(name);
  pool.call_timeout = tenant.environment_timeout;
  spec.pools.push_back(std::move(pool));
  return static_cast<int32_t>(spec.pools.size()) - 1;
}

}  // namespace

TenantOutside outside_of(const Tenant& tenant) {
  TenantOutside outside;
  outside.environment =
      add_pool(tenant.environment, fmt::format("environment '{}'", tenant.environment.name), tenant,
               outside.spec);
  for (const TenantReward& reward : tenant.rewards)
    outside.rewards.push_back(
        add_pool(reward, fmt::format("reward '{}'", reward.label), tenant, outside.spec));
  return outside;
}

bool drives_rollouts(const Tenant& tenant) {
  return tenant.environment.contract != nullptr && tenant.environment.contract->drives_rollouts;
}

}  // namespace primerl
