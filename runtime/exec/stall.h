/// Turns looks at all groups into the report a person reads when a run stands still. Shared by both
/// executors, which know the groups of one process, and by the control plane, to which every
/// process reports its own. No threads, no state.
#pragma once

#include <optional>
#include <span>

#include "runtime/exec/actor_group.h"

namespace primerl {

/// `views` has one entry per group that is known of. Groups with nothing to report are left out; in
/// a run of several processes each is named with its own. A group waits for the targets of its full
/// outputs; with none of those full, for the senders of the inputs it does not hold paused. The
/// wait cycle is the first such cycle, from the lowest group on, that holds a full output or a
/// paused input; an open chain is no cycle and gives none.
StallReport make_stall_report(const Plan& plan, const Wiring& wiring,
                              std::span<const GroupView> views, Time now);

/// A look at a group as another process can be told it, and back: `now` is of the clock of the side
/// that calls. None where the plan has no such group or link.
GroupReport to_report(const GroupView& view, Time now);
std::optional<GroupView> to_view(const Plan& plan, const Wiring& wiring, const GroupReport& report,
                                 Time now);

}  // namespace primerl
