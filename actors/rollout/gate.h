/// The gate: may a tenant open another group? Pure arithmetic, counted in groups.
///
/// Batch N (from 1) is applied to v(N-1) and makes vN. A group opened under v_k may train in batch
/// N iff (N-1) - k <= max_off_policy_steps. Under live version v a group may open only while
///
///   opened - lost < v * G + depth,   depth <= (1 + max_off_policy_steps) * G
///   inflight + group_size <= max_inflight
///
/// `depth` comes from the pace (pace.h): once that many groups are in flight, G groups open for
/// each version. When a group is lost, another may open at once.
#pragma once

#include <cstdint>

#include "graph/base/ids.h"

namespace primerl {

/// The limits of a tenant; G = groups_per_batch.
struct GateLimits {
  int64_t groups_per_batch = 1;
  int64_t max_off_policy_steps = 0;
  int64_t group_size = 1;    // rollouts
  int64_t max_inflight = 1;  // rollouts

  /// Fewest groups in flight: the batch being trained, and the next one being generated.
  int64_t depth_min() const;
  /// Most groups in flight that the staleness limit allows.
  int64_t depth_max() const;
};

struct GateCounts {
  int64_t opened = 0;     // groups
  int64_t delivered = 0;  // groups that are no longer in flight, dropped ones included
  int64_t lost = 0;       // groups that ended without training
  int64_t inflight = 0;   // rollouts; counted again for each question

  template <class F>
  static void fields(F& f) {
    using C = GateCounts;
    f("opened", &C::opened)("delivered", &C::delivered)("lost", &C::lost);
  }
};

enum class GateAnswer { kOpen, kNoPolicy, kOpenedLimit, kPaced, kInflightLimit };

/// `live` is none before the first PolicyLive; no group opens then. `depth` is in groups, between
/// depth_min() and depth_max().
GateAnswer ask_gate(const GateLimits& limits, const GateCounts& counts, int64_t depth,
                    PolicyVersion live);

/// (N-1) - k, for a group opened under `opened_under` (k) in the batch that makes `made` (N).
int64_t staleness(PolicyVersion made, PolicyVersion opened_under);

/// Whether a group opened under `opened_under` can train in any batch after `latest`: the next
/// batch makes latest + 1, and in later ones the group is staler.
bool can_train(PolicyVersion latest, PolicyVersion opened_under, int64_t max_off_policy_steps);

}  // namespace primerl
