/// The output of a rollout of dialect W0, whose record is a flat list of steps. Pure functions.
#pragma once

#include "graph/base/json.h"

namespace primerl {

/// The member of docs/design/verifiers.md. A step whose prompt begins with all tokens of an earlier
/// branch extends it; any other begins a branch.
Json legacy_member(const Json& output);

}  // namespace primerl
