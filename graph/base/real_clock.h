/// The machine's clocks: a steady one for waits and durations, and the one that people read. Actors
/// never include this: they ask `services().now()`, which a recorded run can repeat.
///
/// Pure reads, any thread.
#pragma once

#include <chrono>
#include <string>

#include "graph/base/clock.h"

namespace primerl {

/// Rises steadily while the machine runs (CLOCK_MONOTONIC); means nothing on another machine.
Time steady_now();

/// When a wait that begins now and may last `timeout`, at most a day, has to end.
std::chrono::steady_clock::time_point deadline_after(Duration timeout);

/// Seconds since 1970, UTC.
double wall_seconds();
/// Of wall_seconds(), UTC: "20261121-062445" for names of folders, "2026-11-21T06:24:45Z" for text.
std::string folder_time(double wall);
std::string iso_time(double wall);

}  // namespace primerl
