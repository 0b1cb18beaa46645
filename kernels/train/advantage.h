/// Group advantages: how much better or worse each rollout was than its group.
///
/// Pure functions. `rewards` [group_size], one per surviving member, in member order.
#pragma once

#include <span>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

/// Reward minus the group's mean, not divided by the deviation; a group of one has advantage 0. A
/// reward that is NaN or infinite is an error that names the member: the caller drops it first.
Result<std::vector<float>> group_advantages(std::span<const double> rewards);

}  // namespace primerl
