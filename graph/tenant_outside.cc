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
  for (size_t i = 0; i < tenant.num_environments(); ++i) {
    const Tenant& part = tenant.in_environment(i);
    OutsideUse& use = outside.environments.emplace_back();
    use.environment =
        add_pool(part.environment, fmt::format("environment '{}'", part.environment_label()), part,
                 outside.spec);
    for (const TenantReward& reward : part.rewards)
      use.rewards.push_back(
          add_pool(reward, fmt::format("reward '{}'", reward.label), part, outside.spec));
  }
  return outside;
}

bool drives_rollouts(const Tenant& tenant) {
  for (size_t i = 0; i < tenant.num_environments(); ++i) {
    const EnvironmentContract* const contract = tenant.in_environment(i).environment.contract;
    if (contract != nullptr && contract->drives_rollouts) return true;
  }
  return false;
}

}  // namespace primerl
