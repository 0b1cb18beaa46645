/// A trace up to a step of each actor group, for a trace whose later part is unusable or missing.
/// It is a view: it owns the whole trace and has the same interface.
#pragma once

#include <memory>
#include <vector>

#include "runtime/trace/read/trace.h"

namespace primerl {

/// Steps up to `last_steps`, by GroupId, with the messages that they handled and sent. Later steps
/// are hidden completely, except that their payloads can still be read. Faults, summary and
/// is_closed() are those of the whole trace.
std::shared_ptr<const Trace> trace_up_to(std::shared_ptr<const Trace> whole,
                                         std::vector<uint64_t> last_steps);

}  // namespace primerl
