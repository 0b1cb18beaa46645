/// The pools outside of the process that the environment and the rewards of a tenant ask.
#pragma once

#include "graph/catalog.h"
#include "graph/outside.h"
#include "graph/tenant.h"

namespace primerl {

/// The pools that one environment of a tenant asks.
struct OutsideUse {
  int32_t environment = -1;      // index of its pool; -1: it is code of this process
  std::vector<int32_t> rewards;  // the same for each of its rewards
};

struct TenantOutside {
  OutsideSpec spec;                      // the pools of all environments
  std::vector<OutsideUse> environments;  // parallel to those of the tenant
  bool asks() const { return !spec.pools.empty(); }
};

TenantOutside outside_of(const Tenant& tenant);

/// Whether an environment of the tenant calls the policy itself.
bool drives_rollouts(const Tenant& tenant);

}  // namespace primerl
