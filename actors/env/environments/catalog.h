/// The environments that a graph file may name: `[tenant.x] environment = { name = "reverse_text"
/// }`. To add one, write one pair of files and one entry in catalog.cc.
#pragma once

#include <memory>
#include <vector>

#include "actors/env/environment.h"
#include "graph/catalog.h"
#include "graph/tenant.h"

namespace primerl {

/// Name, doc and options of every environment, for `check` and for the reference pages.
std::vector<EnvironmentContract> environment_contracts();

/// Builds the environment that a tenant names. `environment.options` are the options that its
/// contract has parsed; null means the defaults.
Result<std::unique_ptr<Environment>> make_environment(const TenantEnvironment& environment);

}  // namespace primerl
