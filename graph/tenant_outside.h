/// The pools outside of the process that the environment and the rewards of a tenant ask.
#pragma once

#include "graph/catalog.h"
#include "graph/outside.h"
#include "graph/tenant.h"

namespace primerl {

struct TenantOutside {
  OutsideSpec spec;
  int32_t environment = -1;      // index of its pool; -1: it is code of this process
  std::vector<int32_t> rewards;  // the same for each reward of the tenant
  bool asks() const { return !spec.pools.empty(); }
};

TenantOutside outside_of(const Tenant& tenant);

/// Whether the tenant's environment calls the policy itself.
bool drives_rollouts(const Tenant& tenant);

}  // namespace primerl
