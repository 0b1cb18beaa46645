#include "runtime/exec/drain.h"

#include <algorithm>
#include <utility>

namespace primerl {

bool DrainDetector::is_over(std::span<const GroupCounts> groups) {
  uint64_t steps = 0, shipped = 0, received = 0;
  bool idle = true;
  for (const GroupCounts& group : groups) {
    steps += group.num_steps;
    shipped += group.num_shipped;
    received += group.num_received;
    idle = idle && group.is_idle;
  }
  const bool quiet = idle && shipped == received;
  const bool over = quiet && was_quiet_ && steps == num_steps_ && shipped == num_shipped_;
  was_quiet_ = quiet;
  num_steps_ = steps;
  num_shipped_ = shipped;
  return over;
}

Duration SlotDrain::next_pause() {
  return std::exchange(pause_, std::min(pause_ * 2, kLookAfterMax));
}

void SlotDrain::ordered(Time now, Duration drain_max) {
  if (deadline_ != Time()) return;
  deadline_ = now + drain_max;
  latest_ = deadline_ + kSavesMax;
}

void SlotDrain::saved(Time last, Duration drain_max) {
  deadline_ = std::max(deadline_, std::min(last + drain_max, latest_));
}

bool SlotDrain::is_over(std::span<const SlotCounts> groups) {
  uint64_t shipped = 0, received = 0;
  bool idle = true;
  for (const SlotCounts& group : groups) {
    shipped += group.num_shipped;
    received += group.num_received;
    idle = idle && group.is_idle;
  }
  const bool quiet = idle && shipped == received;
  const bool over = quiet && was_quiet_ && shipped == num_shipped_;
  was_quiet_ = quiet;
  num_shipped_ = shipped;
  return over;
}

}  // namespace primerl
