/// The resources of a world of state_world.h, with its faults.
#pragma once

#include <functional>

#include "runtime/exec/executor.h"
#include "tests/sim/world_spec.h"

namespace primerl::sim {

/// `on_limits` is called when an actor asks a learner for its limits. All processes of the plan
/// share one weight channel.
ResourceFactory factory_of(const WorldSpec& spec, const std::function<void()>& on_limits);

}  // namespace primerl::sim
