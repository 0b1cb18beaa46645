/// RestartBudget: how often something that dies is started again, and how long to wait before: at
/// most `restarts_max` times within `window`, each pause twice as long as the last, so that a
/// process that keeps dying does not overload the machine.
///
/// A value; no clock of its own; one thread.
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
  /// Takes one restart. Returns how long to wait before it: 50 ms, twice as long each time, at most
  /// 6.4 s; nothing when none is left.
  std::optional<Duration> take(Time now);
  /// Restarts that count against `restarts_max` now.
  size_t num_taken() const { return taken_.size(); }

 private:
  int64_t restarts_max_;
  Duration window_;
  std::vector<Time> taken_;
};

}  // namespace primerl
