/// The trial of what tenants ask outside of the process: starts one worker of each pool, plays
/// three tasks and stops them. `check --start` and `run` do it, before a run folder exists.
///
/// Tenants whose `env` node is on another machine are left out: the programs are there.
#pragma once

#include <string>
#include <vector>

#include "graph/plan.h"

namespace primerl {

/// Names what a check without a trial does not start: "reward 'python' of tenant 'main'".
std::vector<std::string> outside_pools(const Plan& plan);

/// One line for each tenant. The error names tenant and pool, and what its worker wrote last.
Result<std::vector<std::string>> try_outside(const Plan& plan);

}  // namespace primerl
