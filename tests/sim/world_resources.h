/// The resources of a world of state_world.h, with its faults.
#pragma once

#include <functional>
#include <string_view>

#include "runtime/exec/executor.h"
#include "tests/sim/world_spec.h"

namespace primerl::sim {

/// `seen` is called with everything that an actor asks outside, and "limits" when it asks a learner
/// for its limits. All processes of the plan share one weight channel.
ResourceFactory factory_of(const WorldSpec& spec, std::function<void(std::string_view)> seen);

}  // namespace primerl::sim
