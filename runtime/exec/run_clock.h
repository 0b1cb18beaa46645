/// RunClock: the time of a run on the machine's steady clock. A run that is taken up again goes on
/// from the moment its record ends: between the two no time has passed for its actors.
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
  /// When the steady clock shows what this one calls `time`.
  std::chrono::steady_clock::time_point at(Time time) const;
  /// It is `time` now.
  void go_on_from(Time time);

 private:
  std::atomic<int64_t> ahead_ns_{0};  // of the steady clock; negative: behind it
};

}  // namespace primerl
