#include "runtime/control/restart_budget.h"

#include <algorithm>
#include <utility>

namespace primerl {

void RestartBudget::forget_old(Time now) {
  std::erase_if(taken_, [&](Time at) { return now - at >= window_; });
}

std::optional<Duration> RestartBudget::take(Time now) {
  if (std::cmp_greater_equal(taken_.size(), restarts_max_)) return std::nullopt;
  const Duration pause = Duration::milliseconds(int64_t{50} << std::min<size_t>(taken_.size(), 7));
  taken_.push_back(now);
  return pause;
}

}  // namespace primerl
