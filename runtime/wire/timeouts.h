/// How long the processes of a run wait for each other, all from one number: `graph.dead_after`.
/// Whoever says nothing for that long counts as dead. What waits for somebody who may be frozen
/// waits longer than that, so that the frozen one is found dead first. Functions, any thread.
#pragma once

#include <algorithm>

#include "graph/base/clock.h"

namespace primerl {

/// Between two heartbeats of a worker, an agent or a control plane: five within `dead_after`, at
/// least one a second.
inline Duration beat_every(Duration dead_after) {
  return std::min(Duration::seconds(1), Duration::nanoseconds(dead_after.to_nanoseconds() / 5));
}

/// For the first greeting of a new connection: a frozen peer is found dead, and its successor has
/// ten seconds to come up and greet.
inline Duration greet_max(Duration dead_after) { return dead_after + Duration::seconds(10); }

/// For the first word of a worker that was started: it loads its libraries before.
inline constexpr Duration kHelloMax = Duration::seconds(60);
inline Duration hello_max(Duration dead_after) { return std::max(kHelloMax, dead_after); }

/// For an agent that a run had before: it may have to find the control plane dead first, and be
/// started again.
inline Duration agent_back_max(Duration dead_after) {
  return std::max(Duration::seconds(10), dead_after * 2);
}

}  // namespace primerl
