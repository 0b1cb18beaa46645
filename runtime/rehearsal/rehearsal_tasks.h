/// A look at the tasks that the tenants of a graph would get: the rehearsal plays with scripted
/// ones, so whether the real ones fit is seen here.
#pragma once

#include "graph/plan.h"

namespace primerl {

inline constexpr size_t kSampleTasks = 4;  // of each tenant

/// Draws some tasks of every tenant whose environment is used, and encodes their prompts where the
/// model's folder has a tokenizer. Reports G086 where not one of them can be solved, and keeps the
/// plan as it is. Reads no weights.
void check_tasks(CheckedGraph& checked);

}  // namespace primerl
