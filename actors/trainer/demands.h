/// The trainer's requirements on a tenant: each function returns the fault of one key of
/// `[tenant.x]`, or an empty text. `own` are the objectives of plugins. Pure functions.
#pragma once

#include <string>

#include "graph/tenant.h"
#include "kernels/train/options.h"

namespace primerl {

std::string fault_of_loss(const Tenant& tenant, const OwnObjectives& own);
std::string fault_of_advantage(const Tenant& tenant, const OwnObjectives& own);
std::string fault_of_filter_keys(const Tenant& tenant, const OwnObjectives& own);
std::string fault_of_group_size(const Tenant& tenant, const OwnObjectives& own);
std::string fault_of_temperature(const Tenant& tenant, const OwnObjectives& own);
std::string fault_of_top_k(const Tenant& tenant, const OwnObjectives& own);
std::string fault_of_top_p(const Tenant& tenant, const OwnObjectives& own);
std::string fault_of_min_p(const Tenant& tenant, const OwnObjectives& own);
std::string fault_of_targets(const Tenant& tenant, const OwnObjectives& own);

}  // namespace primerl
