/// RestartBudget: how often a dead process is restarted, and how long to wait before each restart.
/// It allows at most `restarts_max` restarts within `window`. Each pause is twice as long as the
/// last one, so a process that dies again and again does not overload the machine.
///
/// A value; it has no clock; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/base/clock.h"

namespace primerl {

class RestartBudget {
 public:
  RestartBudget(int64_t restarts_max, Duration window)
      : restarts_max_(restarts_max), window_(window) {}

  /// Restarts older than the window no longer count.
  void forget_old(Time now);
  /// Uses one restart. Returns how long to wait before it: 50 ms, then twice as long each time, at
  /// most 6.4 s. None when no restart is left.
  std::optional<Duration> take(Time now);
  /// Number of restarts that count against `restarts_max` now.
  size_t num_taken() const { return taken_.size(); }

 private:
  int64_t restarts_max_;
  Duration window_;
  std::vector<Time> taken_;
};

}  // namespace primerl
