/// Which processes a weight channel joins, and by which backend: what "auto" comes to.
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

/// The processes with a user of the resource at `index` of plan.resources, ascending.
std::vector<ProcessId> processes_of(const Plan& plan, int32_t index);

/// Of the weight channel at `index` of plan.resources: its own backend, or the first of memory, shm
/// and stream that joins its processes for "auto". kInvalid where it names one that cannot.
Result<std::string> weight_backend(const Plan& plan, int32_t index);

/// Whether weights travel between the two by a channel of backend stream: one of them has the
/// learner that publishes (or nobody has).
bool are_joined_by_weights(const Plan& plan, ProcessId one, ProcessId other);

}  // namespace primerl
