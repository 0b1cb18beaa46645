/// Turns looks at all hosts into the report a person reads when a run stands still. Shared by both
/// executors, which know the hosts of one process, and by the control plane, to which every process
/// reports its own. No threads, no state.
#pragma once

#include <optional>
#include <span>

#include "runtime/exec/host.h"

namespace primerl {

/// `views` has one entry per host that is known of. Hosts with nothing to report are left out; in a
/// run of several processes each is named with its own.
/// A host waits for the targets of its full outputs; with none of those full, for the senders of
/// the inputs it does not hold paused. The wait cycle is the first such cycle, from the lowest host
/// on, that holds a full output or a paused input; an open chain is no cycle and gives none.
StallReport make_stall_report(const Plan& plan, const Wiring& wiring,
                              std::span<const HostView> views, Time now);

/// A look at a host as another process can be told it, and back: `now` is of the clock of the side
/// that calls. None where the plan has no such host or link.
HostReport to_report(const HostView& view, Time now);
std::optional<HostView> to_view(const Plan& plan, const Wiring& wiring, const HostReport& report,
                                Time now);

}  // namespace primerl
