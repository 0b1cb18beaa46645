/// What Prefill and Decode do with a PolicyUpdate: fetch the snapshot, apply it between two steps.
#pragma once

#include "actors/messages/policy.h"
#include "kernels/engine/engine.h"
#include "kernels/weights/snapshot.h"

namespace primerl {

/// Applies `version`, or the channel's newest when `version` has been retired. Always an answer:
/// a failure is its `fault`, and then the engine keeps its weights.
PolicyApplied apply_policy(PolicyVersion version, InstanceId self, Engine& engine,
                           WeightChannel& weights);

}  // namespace primerl
