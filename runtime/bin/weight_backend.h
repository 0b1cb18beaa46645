/// Which backend a weight channel with `backend = "auto"` has: memory when publisher and receivers
/// share a process, shm when their processes share a machine, else files. Pure, any thread.
#pragma once

#include <string>

#include "graph/plan.h"

namespace primerl {

/// Of the weight channel at `index` of plan.resources: its own backend, or what "auto" comes to.
/// kInvalid where it names one that cannot reach all its ends.
Result<std::string> weight_backend(const Plan& plan, int32_t index);

}  // namespace primerl
