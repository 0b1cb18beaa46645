/// Makes the report of a stalled run from the views of all groups. Used by both executors, which
/// know the groups of one process, and by the control plane, which gets a report from every
/// process. No threads, no state.
#pragma once

#include <optional>
#include <span>

#include "runtime/exec/actor_group.h"

namespace primerl {

/// `views` has one entry per known group. Groups with nothing to report are left out. In a run of
/// several processes, each group is named with its process. A group waits for the targets of its
/// full outputs. If no output is full, it waits for the senders of its inputs that are not paused.
/// The wait cycle is the first cycle that contains a full output or a paused input, searched from
/// the lowest group. It is empty without such a cycle.
StallReport make_stall_report(const Plan& plan, const Wiring& wiring,
                              std::span<const GroupView> views, Time now);

/// Converts the view of a group to its wire form and back. `now` is of the caller's clock. None
/// when the plan has no such group or link.
GroupReport to_report(const GroupView& view, Time now);
std::optional<GroupView> to_view(const Plan& plan, const Wiring& wiring, const GroupReport& report,
                                 Time now);

}  // namespace primerl
