/// SlotOutside: the Outside of a slot, whose tenants come and go. It asks the pools of the tenant
/// that has the slot now, and has neither processes nor a thread while that tenant asks nothing
/// outside.
///
/// begin_tenant() starts the processes of a tenant, end_tenant() ends them: each has a second to
/// end by itself, then its group is killed. If a pool cannot be used any more, the calls are
/// answered by kUnusable, so that one tenant fails and not the run. Threads: those of Outside.
#pragma once

#include <functional>
#include <memory>

#include "graph/outside.h"

namespace primerl {

using OutsideMaker = std::function<std::shared_ptr<Outside>(OutsideSpec spec)>;

/// `first` is of the tenant that has the slot at the start, and has no pool if there is none. Its
/// processes start with set_wake().
std::shared_ptr<Outside> make_slot_outside(OutsideSpec first, OutsideMaker make);

}  // namespace primerl
