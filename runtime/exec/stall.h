/// Turns the views of all groups into the report a person reads when a run has stalled. Shared by
/// both executors, which know the groups of one process, and by the control plane, to which every
/// process reports its own. No threads, no state.
#pragma once

#include <optional>
#include <span>

#include "runtime/exec/actor_group.h"

namespace primerl {

/// `views` has one entry per known group. Groups with nothing to report are left out; in a run of
/// several processes each is named with its process. A group waits for the targets of its full
/// outputs; if none is full, for the senders of the inputs that it has not paused. The wait cycle
/// is the first cycle, from the lowest group on, that contains a full output or a paused input;
/// empty when the waits form no cycle.
StallReport make_stall_report(const Plan& plan, const Wiring& wiring,
                              std::span<const GroupView> views, Time now);

/// Converts the view of a group to its form on the wire, and back: `now` is of the clock of the
/// calling side. None when the plan has no such group or link.
GroupReport to_report(const GroupView& view, Time now);
std::optional<GroupView> to_view(const Plan& plan, const Wiring& wiring, const GroupReport& report,
                                 Time now);

}  // namespace primerl
