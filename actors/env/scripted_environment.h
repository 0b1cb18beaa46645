/// An environment for rehearsals: short tasks, every second one with an observation, and rewards
/// that differ from rollout to rollout. Stateless; uses no files and no network.
#pragma once

#include <memory>

#include "actors/env/environment.h"

namespace primerl {

std::unique_ptr<Environment> make_scripted_environment();

}  // namespace primerl
