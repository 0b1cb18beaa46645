/// What Prefill and Decode do with a PolicyUpdate: fetch the snapshot, apply it between two steps.
#pragma once

#include <optional>

#include "actors/messages/policy.h"
#include "graph/base/services.h"
#include "kernels/engine/engine.h"
#include "kernels/weights/snapshot.h"

namespace primerl {

/// How soon a version whose bytes have not come yet is asked for again; the engine goes on
/// meanwhile.
inline constexpr Duration kWeightsRetry = Duration::milliseconds(20);

/// An update that waits for its bytes.
struct ComingPolicy {
  PolicyVersion version;
  TenantSlot tenant;
  StepRef cause;  // the update
};

/// Applies `version`, or the channel's newest when `version` has been retired. An answer, whose
/// `fault` is not empty when it failed and the engine keeps its weights; nothing when the bytes
/// have not come yet: ask again.
std::optional<PolicyApplied> apply_policy(PolicyVersion version, InstanceId self, Engine& engine,
                                          WeightChannel& weights);

}  // namespace primerl
