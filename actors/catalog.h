/// The standard actors: what a graph file may name in `actor = "..."`.
#pragma once

#include <vector>

#include "graph/contract.h"

namespace primerl {

std::vector<Contract> actor_catalog();

}  // namespace primerl
