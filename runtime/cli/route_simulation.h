/// Plays a session trace through one routing policy on simulated engines: what the policy would
/// have made of the same prompts.
///
/// An engine is a line of prompts at `prefill_tokens_per_s`, one after the other and without the
/// tokens its cache has, and a batch that decodes `decode_tokens_per_s` in all, each sequence an
/// equal share. Neither slows the other and any number may wait. Its cache holds `kv_blocks` blocks
/// of kRouteBlockTokens tokens; those used longest ago go first. A session's turn begins when it
/// arrives, or when the one before has ended if that is later. The router knows at once what an
/// engine has ended. No chance and no clock: equal inputs give equal numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/router/policies/policy.h"
#include "runtime/cli/session_trace.h"

namespace primerl {

struct SimulatedEngines {
  int64_t num_engines = 4;
  double prefill_tokens_per_s = 20'000;  // of each engine
  double decode_tokens_per_s = 2'000;
  int64_t kv_blocks = 4096;
};

struct RouteOutcome {
  std::string policy;
  double hit_rate = 0;  // prompt tokens found in a cache by all prompt tokens
  double balance = 0;   // the most requests that an engine had over time by the mean; 1 is even
  double group_p50_s = 0, group_p90_s = 0;  // from a group's first arrival to its last answer
  double end_s = 0;                         // of the last answer
  std::vector<uint64_t> loads_at_end;       // [engines], each 0
};

RouteOutcome simulate_routes(const SessionTrace& trace, const RoutePolicyContract& policy,
                             const SimulatedEngines& engines);

}  // namespace primerl
