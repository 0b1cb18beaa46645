/// Checks the real tasks that the tenants of a graph would get, because the rehearsal itself uses
/// scripted tasks.
#pragma once

#include "graph/plan.h"

namespace primerl {

inline constexpr size_t kSampleTasks = 4;  // of each tenant

/// Reads some tasks of every tenant whose environment is used, and encodes their prompts if the
/// model's folder has a tokenizer. Reports G086 if none of them can be solved; the plan is not
/// changed. Reads no weights.
void check_tasks(CheckedGraph& checked);

}  // namespace primerl
