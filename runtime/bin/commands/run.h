/// What `run` and `sft` share: both run a graph.
#pragma once

#include "runtime/bin/run_plan.h"

namespace primerl {

void declare_run(RunArguments& arguments, Arguments& flags);

/// From checking to the summary; returns an exit code.
int run_graph(const RunArguments& arguments);

}  // namespace primerl
