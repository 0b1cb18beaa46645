/// How long the processes of a run wait for each other, all from one number: `graph.dead_after`. A
/// process that sends nothing for that long counts as dead. Waits for a process that may be frozen
/// last longer than that, so that the frozen process is declared dead first. Functions, any thread.
#pragma once

#include <algorithm>

#include "graph/base/clock.h"

namespace primerl {

/// Time between two heartbeats of a worker, an agent or a control plane: five within `dead_after`,
/// at least one a second.
inline Duration beat_every(Duration dead_after) {
  return std::min(Duration::seconds(1), Duration::nanoseconds(dead_after.to_nanoseconds() / 5));
}

/// For the first greeting of a new connection: a frozen peer is declared dead, and its replacement
/// has ten seconds to start and greet.
inline Duration greet_max(Duration dead_after) { return dead_after + Duration::seconds(10); }

/// For the first message of a started worker, which loads its libraries before it.
inline constexpr Duration kHelloMax = Duration::seconds(60);
inline Duration hello_max(Duration dead_after) { return std::max(kHelloMax, dead_after); }

/// For an agent that served the run before. It may first have to declare the old control plane dead
/// and be restarted.
inline Duration agent_back_max(Duration dead_after) {
  return std::max(Duration::seconds(10), dead_after * 2);
}

}  // namespace primerl
