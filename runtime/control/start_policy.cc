#include "runtime/control/start_policy.h"

#include <algorithm>

namespace primerl {

StartPolicy::Next StartPolicy::after(const RunEnding& ending, int64_t num_steps, Time now) {
  Next next;
  if (!ending.must_skip_record) {
    if (!ending.has_lost_worker) return next;
    // Without progress, old restarts count too: reaching a step that always fails may take longer
    // than the window.
    if (num_steps > num_steps_) restarts_.forget_old(now);
    num_steps_ = std::max(num_steps_, num_steps);
    const auto pause = restarts_.take(now);
    next.what = Next::What::kExhausted;
    if (!pause) return next;
    next.pause = *pause;
  }
  next.what = Next::What::kAgain;
  // If processes die repeatedly while they follow a record, they would die again with it.
  num_deaths_following_ = ending.was_following ? num_deaths_following_ + 1 : 0;
  next.from_checkpoint = ending.must_skip_record || num_deaths_following_ >= kDeathsFollowingMax;
  return next;
}

}  // namespace primerl
