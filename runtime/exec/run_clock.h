/// RunClock: the time of a run, based on the machine's steady clock. A resumed run continues from
/// the last recorded moment, so its actors do not see the interruption.
///
/// Threads: now() and at() from any; continue_from() once, from one thread.
#pragma once

#include <atomic>
#include <chrono>

#include "graph/base/clock.h"

namespace primerl {

class RunClock {
 public:
  Time now() const;
  /// The steady-clock time at which this clock shows `time`.
  std::chrono::steady_clock::time_point at(Time time) const;
  /// Sets the clock to `time`.
  void continue_from(Time time);

 private:
  std::atomic<int64_t> ahead_ns_{0};  // added to the steady clock; may be negative
};

}  // namespace primerl
