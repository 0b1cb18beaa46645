/// Which processes a weight channel connects, and by which backend: how "auto" is resolved.
///
///   backend   joins
///   memory    one process
///   shm       processes of one machine; weights stay on their devices where all ends have one
///   files     processes that share a disk
///   stream    any: its bytes travel over the connections between them
///
/// Pure functions of a Plan, the same in every process; any thread.
#pragma once

#include <string>
#include <vector>

#include "graph/plan.h"

namespace primerl {

/// The processes that have a user of the resource at `index` of plan.resources, ascending.
std::vector<ProcessId> processes_of(const Plan& plan, int32_t index);

/// The backend of the weight channel at `index` of plan.resources. For "auto" it is the first of
/// memory, shm and stream that can connect its processes. kInvalid if the channel names a backend
/// that cannot.
Result<std::string> weight_backend(const Plan& plan, int32_t index);

/// Whether weights travel between the two by a channel of backend stream: one of them has the
/// learner that publishes, or no process has one.
bool are_joined_by_weights(const Plan& plan, ProcessId one, ProcessId other);

}  // namespace primerl
