/// An environment for rehearsals: short tasks, an observation in every second of them, and rewards
/// that differ from rollout to rollout. Stateless; asks nothing of the world outside.
#pragma once

#include <memory>

#include "actors/env/environment.h"

namespace primerl {

std::unique_ptr<Environment> make_scripted_environment();

}  // namespace primerl
