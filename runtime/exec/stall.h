/// Turns looks at all hosts into the report a person reads when a run stands still. Shared by both
/// executors. No threads, no state.
#pragma once

#include <span>

#include "runtime/exec/host.h"

namespace primerl {

/// `views` has one entry per host of this process. Hosts with nothing to report are left out.
/// A host waits for the targets of its full outputs; with none of those full, for the senders of
/// the inputs it does not hold paused. The wait cycle is the first such cycle, from the lowest host
/// on, that holds a full output or a paused input; an open chain is no cycle and gives none.
StallReport make_stall_report(const Plan& plan, const Wiring& wiring,
                              std::span<const HostView> views, Time now);

}  // namespace primerl
