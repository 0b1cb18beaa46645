/// The gate: may a tenant open another group? Pure arithmetic, counted in groups.
///
/// Batch N (from 1) is applied to v(N-1) and makes vN. A group opened under v_k may train in batch
/// N iff (N-1) - k <= max_off_policy_steps. Under live version v a group may open only while
///
///   opened    - lost < (v + 1 + max_off_policy_steps) * G
///   delivered - lost < (v + 1 + min(1, max_off_policy_steps)) * G
///   inflight + group_size <= max_inflight
///
/// `delivered` counts the groups that are no longer in flight: a group dropped in flight is
/// delivered and lost at once, so it leaves both differences alone.
#pragma once

#include <cstdint>

#include "graph/base/ids.h"

namespace primerl {

/// What a tenant asks for; G = groups_per_batch.
struct GateLimits {
  int64_t groups_per_batch = 1;
  int64_t max_off_policy_steps = 0;
  int64_t group_size = 1;    // rollouts
  int64_t max_inflight = 1;  // rollouts
};

struct GateCounts {
  int64_t opened = 0;     // groups
  int64_t delivered = 0;  // groups that are not in flight any more
  int64_t lost = 0;       // groups that ended otherwise than trained
  int64_t inflight = 0;   // rollouts
};

enum class GateAnswer { kOpen, kNoPolicy, kOpenedLimit, kDeliveredLimit, kInflightLimit };

/// `live` is none before the first PolicyLive: then nothing opens.
GateAnswer ask_gate(const GateLimits& limits, const GateCounts& counts, PolicyVersion live);

/// (N-1) - k, of a group opened under `opened_under` in the batch that makes `made` (N).
int64_t staleness(PolicyVersion made, PolicyVersion opened_under);

/// Whether a group opened under `opened_under` can train in any batch once `latest` is made: the
/// next batch is latest + 1, and later ones are staler.
bool can_train(PolicyVersion latest, PolicyVersion opened_under, int64_t max_off_policy_steps);

}  // namespace primerl
