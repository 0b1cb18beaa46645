/// RestartBudget: how often something that dies is started again, and how long to wait before: at
/// most `restarts_max` times within `window`, each pause twice as long as the last, so that what
/// cannot live does not take the machine with it.
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
  /// Takes one restart; how long to wait before it: 50 ms, twice as long each time, at most
  /// 6.4 s. Nothing: there is none left.
  std::optional<Duration> take(Time now);
  /// That count against `restarts_max` now.
  size_t num_taken() const { return taken_.size(); }

 private:
  int64_t restarts_max_;
  Duration window_;
  std::vector<Time> taken_;
};

}  // namespace primerl
