/// The machine's clocks: a steady one for waits and durations, and the wall clock. Actors never
/// include this: they call `services().now()`, which a replay can repeat.
///
/// Pure reads, any thread.
#pragma once

#include <chrono>
#include <string>

#include "graph/base/clock.h"

namespace primerl {

/// Rises steadily while the machine runs (CLOCK_MONOTONIC). Values of two machines cannot be
/// compared.
Time steady_now();

/// When a wait that begins now must end, after `timeout` but at most one day.
std::chrono::steady_clock::time_point deadline_after(Duration timeout);

/// Seconds since 1970, UTC.
double wall_seconds();

}  // namespace primerl
