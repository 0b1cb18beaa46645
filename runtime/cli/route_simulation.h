/// Replays a session trace through one routing policy on simulated engines, to show how that policy
/// would route the same prompts.
///
/// An engine prefills prompts in a queue, one after the other, at `prefill_tokens_per_s`, without
/// the tokens in its cache. Its decode batch generates `decode_tokens_per_s` in total, an equal
/// share for each sequence. Prefill and decode do not slow each other, and any number of requests
/// may wait. Its cache has `kv_blocks` blocks of kRouteBlockTokens tokens; the least recently used
/// blocks are evicted. A turn begins when it arrives, or when the session's last turn has ended if
/// that is later. The router sees at once when a request ends. No randomness and no clock: equal
/// inputs give equal numbers.
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
  double hit_rate = 0;  // prompt tokens found in a cache divided by all prompt tokens
  double balance = 0;   // most loaded engine divided by the mean load, over time; 1 is even
  double group_p50_s = 0, group_p90_s = 0;  // from a group's first arrival to its last answer
  double end_s = 0;                         // time of the last answer
  std::vector<uint64_t> loads_at_end;       // [engines], each 0
};

RouteOutcome simulate_routes(const SessionTrace& trace, const RoutePolicyContract& policy,
                             const SimulatedEngines& engines);

}  // namespace primerl
