#include "actors/rollout/pace.h"

#include <algorithm>

namespace primerl {
namespace {

constexpr int64_t kWaitShare = 25;  // The trainer counts as waiting if it waits for more than 1/25
                                    // of the time.
// Laps without a trial after a trial that failed: the first time, and at most.
constexpr int64_t kRestMin = 4, kRestMax = 64;

Duration per_version(Duration took, int64_t num_versions) {
  return Duration::nanoseconds(took.to_nanoseconds() / std::max<int64_t>(num_versions, 1));
}

}  // namespace

int64_t Pace::depth(const GateLimits& limits) const {
  return std::clamp(depth_, limits.depth_min(), limits.depth_max());
}

void Pace::update_counts(const GateLimits& limits, const GateCounts& counts, PolicyVersion made,
                         Time now) {
  const int64_t ready = counts.delivered - counts.lost - made.value * limits.groups_per_batch;
  if (ready < limits.groups_per_batch)
    ready_at_.reset();
  else if (!ready_at_)
    ready_at_ = now;
}

void Pace::see_made(const GateLimits& limits, const GateCounts& counts, PolicyVersion live,
                    PolicyVersion made, Time now) {
  const int64_t batch = limits.groups_per_batch;
  const int64_t open = counts.opened - counts.lost;
  if (free_at_) {
    lap_.took += now - *free_at_;
    if (ready_at_ && *ready_at_ > *free_at_) {
      lap_.waited += *ready_at_ - *free_at_;
      // Groups that opened late for another reason (in-flight limit, no tasks) would not come
      // sooner if the depth were larger.
      if (is_paced_) lap_.waited_paced += *ready_at_ - *free_at_;
    }
    const int64_t ready = counts.delivered - counts.lost - made.value * batch;
    const int64_t spare = std::max<int64_t>(ready - batch, 0);
    lap_.num_spare = lap_.num_versions == 0 ? spare : std::min(lap_.num_spare, spare);
    ++lap_.num_versions;
  }
  if (lap_.num_versions > 0 && made.value * batch >= lap_.end) {
    end_lap(limits);
    lap_ = Lap();
    lap_.end = open;
  }
  free_at_ = now;
  is_paced_ = open >= live.value * batch + depth(limits);
  ready_at_.reset();
  update_counts(limits, counts, made, now);
}

void Pace::end_lap(const GateLimits& limits) {
  const Duration took = per_version(lap_.took, lap_.num_versions);
  if (trial_ == Trial::kSettles) {
    trial_ = Trial::kIsMeasured;
    return;
  }
  if (trial_ == Trial::kIsMeasured) return judge(limits, took);
  const int64_t before = depth(limits);
  if (lap_.num_spare > 0) {
    depth_ = std::max(before - lap_.num_spare, limits.depth_min());
    return;
  }
  rest_ = std::max<int64_t>(rest_ - 1, 0);
  if (rest_ > 0) return;
  const int64_t took_all = lap_.took.to_nanoseconds(), waited = lap_.waited_paced.to_nanoseconds();
  took_before_ = took;
  if (waited > took_all / kWaitShare && !is_shallower_) {
    const int64_t deeper =
        took_all > waited ? std::min(before * waited / (took_all - waited), before) : before;
    try_depth(limits, before + std::max<int64_t>(deeper, 1));
  } else if (is_shallower_ || lap_.waited.to_nanoseconds() <= took_all / kWaitShare) {
    is_shallower_ = true;
    try_depth(limits, before - (before + 3) / 4);
  }
}

void Pace::try_depth(const GateLimits& limits, int64_t depth) {
  depth_before_ = this->depth(limits);
  depth_ = std::clamp(depth, limits.depth_min(), limits.depth_max());
  if (depth_ == depth_before_)
    is_shallower_ = false;  // at a limit already: decide again after the next lap
  else
    trial_ = Trial::kSettles;
}

void Pace::judge(const GateLimits& limits, Duration took) {
  trial_ = Trial::kNone;
  const int64_t before = took_before_.to_nanoseconds();
  // If only the depth limits the rate, the time per version is inversely proportional to the depth.
  const int64_t expected = before * depth_before_ / depth(limits);
  const int64_t limit =
      is_shallower_ ? before + (expected - before) / 4 : before - (before - expected) / 2;
  if (took.to_nanoseconds() <= limit) {
    next_rest_ = 0;
    return;
  }
  depth_ = depth_before_;
  is_shallower_ = !is_shallower_;
  next_rest_ = std::clamp(2 * next_rest_, kRestMin, kRestMax);
  rest_ = next_rest_;
}

}  // namespace primerl
