/// Checks the real tasks that the tenants of a graph would get, because the rehearsal itself uses
/// scripted tasks.
#pragma once

#include <memory>

#include "graph/plan.h"
#include "kernels/text/tokenizer.h"

namespace primerl {

inline constexpr size_t kSampleTasks = 4;  // of each tenant

/// The tokenizer of the rollouts or examples; null if the folder has none, or one that cannot be
/// read.
std::shared_ptr<const Tokenizer> tokenizer_of(const Plan& plan);

/// Reads some tasks of every tenant whose environment is used, and encodes their prompts if the
/// model's folder has a tokenizer. Reports G086 if none of them can be solved, or if a row of a
/// data set does not fit; the plan is not changed. Reads no weights.
void check_tasks(CheckedGraph& checked);

}  // namespace primerl
