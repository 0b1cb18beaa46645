#include "runtime/exec/run_clock.h"

#include "graph/base/real_clock.h"

namespace primerl {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

}  // namespace

Time RunClock::now() const {
  return Time::from_nanoseconds(steady_now().to_nanoseconds() +
                                ahead_ns_.load(std::memory_order_relaxed));
}

steady_clock::time_point RunClock::at(Time time) const {
  return steady_clock::time_point(
      nanoseconds(time.to_nanoseconds() - ahead_ns_.load(std::memory_order_relaxed)));
}

void RunClock::continue_from(Time time) {
  ahead_ns_.store(time.to_nanoseconds() - steady_now().to_nanoseconds(), std::memory_order_relaxed);
}

}  // namespace primerl
