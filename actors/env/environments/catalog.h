/// The environments a graph file may name: `[tenant.x] environment = { name = "reverse_text" }`.
/// A new one is one pair of files and one entry in catalog.cc.
#pragma once

#include <memory>
#include <vector>

#include "actors/env/environment.h"
#include "graph/catalog.h"
#include "graph/tenant.h"

namespace primerl {

/// Name, doc and options of every environment, for the checker and the reference.
std::vector<EnvironmentContract> environment_contracts();

/// Builds what a tenant asks for. `environment.options` is what its contract bound; null means the
/// defaults.
Result<std::unique_ptr<Environment>> make_environment(const TenantEnvironment& environment);

}  // namespace primerl
