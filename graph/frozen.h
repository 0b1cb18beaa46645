/// Frozen engines: all their users write `weights = "none"`, so they keep the weights of their
/// model folder and serve no tenant's adapter. Judges use them. Plain functions.
#pragma once

#include <vector>

#include "graph/plan.h"

namespace primerl {

/// Whether the resource is an engine and no user of it has a weight channel.
bool is_frozen(const Plan& plan, int32_t resource);

/// The same tenants without their adapters, as a frozen engine serves them.
std::vector<Tenant> without_adapters(std::vector<Tenant> tenants);

/// The tenants as the engine serves them.
std::vector<Tenant> tenants_of_engine(const Plan& plan, int32_t engine);

}  // namespace primerl
