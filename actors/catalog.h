/// The standard actors: the names that a graph file may use in `actor = "..."`.
#pragma once

#include <vector>

#include "graph/contract.h"

namespace primerl {

std::vector<Contract> actor_catalog();

}  // namespace primerl
