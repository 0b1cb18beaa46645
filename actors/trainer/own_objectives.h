/// The objectives of plugins, added to a catalog. Pure functions, any thread.
#pragma once

#include <vector>

#include "graph/catalog.h"
#include "kernels/train/objective.h"

namespace primerl {

/// Makes learners and the trainer of `catalog` know them; they are checked (check_own_objective)
/// and have new names.
void add_own_objectives(std::vector<ObjectiveSpec> own, Catalog& catalog);

}  // namespace primerl
