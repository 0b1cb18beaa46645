/// The Outside that gives each call to the resource of its pool: worker processes, or servers that
/// drive rollouts (docs/design/verifiers.md).
///
/// Threads: those of Outside. Answers of all resources share the bound of receive_answers().
#pragma once

#include <memory>
#include <vector>

#include "graph/outside.h"

namespace primerl {

/// The Outside of each pool of an OutsideSpec, in its order. Pools may share one. None is null.
std::shared_ptr<Outside> make_outside_pools(std::vector<std::shared_ptr<Outside>> of_pool);

}  // namespace primerl
