#include "runtime/exec/drain.h"

namespace primerl {

bool DrainDetector::is_over(std::span<const HostCounts> hosts) {
  uint64_t steps = 0, shipped = 0, received = 0;
  bool idle = true;
  for (const HostCounts& host : hosts) {
    steps += host.num_steps;
    shipped += host.num_shipped;
    received += host.num_received;
    idle = idle && host.is_idle;
  }
  const bool quiet = idle && shipped == received;
  const bool over = quiet && was_quiet_ && steps == num_steps_ && shipped == num_shipped_;
  was_quiet_ = quiet;
  num_steps_ = steps;
  num_shipped_ = shipped;
  return over;
}

}  // namespace primerl
