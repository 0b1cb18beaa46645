/// RunClock: the time of a run on the machine's steady clock. A resumed run continues from the
/// moment its record ends: its actors see no time in between.
///
/// Threads: now() and at() from any; go_on_from() once, by one.
#pragma once

#include <atomic>
#include <chrono>

#include "graph/base/clock.h"

namespace primerl {

class RunClock {
 public:
  Time now() const;
  /// The steady-clock time that this clock shows as `time`.
  std::chrono::steady_clock::time_point at(Time time) const;
  /// Sets the clock to `time`.
  void go_on_from(Time time);

 private:
  std::atomic<int64_t> ahead_ns_{0};  // ahead of the steady clock; negative: behind it
};

}  // namespace primerl
