#include "graph/base/real_clock.h"

#include <algorithm>

namespace primerl {
Time steady_now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return Time::from_nanoseconds(
      std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

std::chrono::steady_clock::time_point deadline_after(Duration timeout) {
  const Duration limited = std::min(timeout, Duration::seconds(24 * 3600));
  return std::chrono::steady_clock::now() + std::chrono::nanoseconds(limited.to_nanoseconds());
}

double wall_seconds() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

}  // namespace primerl
