/// A trace up to a step of each actor group: what is left when the rest is of no use, or is not
/// there any more. A view: it holds the whole trace, and is read like it.
#pragma once

#include <memory>
#include <vector>

#include "runtime/trace/read/trace.h"

namespace primerl {

/// Steps up to `last_steps`, by GroupId, with the messages they handled and sent; of a step that is
/// left out no part is there, but payloads can still be read. Faults, summary and is_closed() are
/// those of the whole.
std::shared_ptr<const Trace> trace_up_to(std::shared_ptr<const Trace> whole,
                                         std::vector<uint64_t> last_steps);

}  // namespace primerl
