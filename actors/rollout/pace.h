/// Pace: how many groups may be between opening and training (the depth). It keeps the depth as
/// small as possible while the trainer stays busy: each batch more makes every group one version
/// staler.
///
/// It begins at depth_min(). For each version it measures how long the trainer waited for its batch
/// while only the pace kept the gate closed. A lap ends when all groups that were open at its
/// beginning have had their batch. Then the depth changes:
///
///   more than a batch was ready all the lap   it shrinks by the groups that were spare
///   the trainer waited                        a larger depth is tried, in proportion to the wait,
///                                             at most twice as large
///   else, and after a trial that failed       a smaller depth is tried, by a quarter
///
/// A trial has one lap to settle and one lap that is measured. Assume that only the depth limits
/// the rate; then the time per version changes in inverse proportion to the depth. A larger depth
/// is kept if it saves at least half of the expected time (busy engines save nothing). A smaller
/// depth is kept if it costs at most a quarter of the expected extra time. Otherwise the old depth
/// returns and no trial starts for some laps, twice as many after each failure.
///
/// Times are delivery times, which are in the record, so a replay decides the same.
#pragma once

#include <cstdint>
#include <optional>

#include "actors/rollout/gate.h"
#include "graph/base/clock.h"

namespace primerl {

class Pace {
 public:
  /// Groups, between the limits' depth_min() and depth_max().
  int64_t depth(const GateLimits& limits) const;
  /// Call it after every change of `counts`: notes when the next batch was ready.
  void update_counts(const GateLimits& limits, const GateCounts& counts, PolicyVersion made,
                     Time now);
  /// Call it once for each version that the rollout learns of: `made` exists.
  void see_made(const GateLimits& limits, const GateCounts& counts, PolicyVersion live,
                PolicyVersion made, Time now);

  template <class F>
  static void fields(F& f) {
    f("depth", &Pace::depth_)("lap", &Pace::lap_)("free_at", &Pace::free_at_)(
        "ready_at", &Pace::ready_at_)("is_paced", &Pace::is_paced_)("trial", &Pace::trial_)(
        "is_shallower", &Pace::is_shallower_)("depth_before", &Pace::depth_before_)(
        "took_before", &Pace::took_before_)("rest", &Pace::rest_)("next_rest", &Pace::next_rest_);
  }

 private:
  enum class Trial : uint8_t { kNone, kSettles, kIsMeasured };

  /// Measurements of one lap.
  struct Lap {
    int64_t end = 0;  // the lap ends when this many groups have trained; counted like opened - lost
    int64_t num_versions = 0;
    int64_t num_spare = 0;  // fewest groups ready beyond a batch
    Duration took;
    Duration waited;        // by the trainer, for its batch
    Duration waited_paced;  // the part while only the pace kept the gate closed

    template <class F>
    static void fields(F& f) {
      f("end", &Lap::end)("num_versions", &Lap::num_versions)("num_spare", &Lap::num_spare)(
          "took", &Lap::took)("waited", &Lap::waited)("waited_paced", &Lap::waited_paced);
    }
  };

  void end_lap(const GateLimits& limits);
  void judge(const GateLimits& limits, Duration took);
  void try_depth(const GateLimits& limits, int64_t depth);

  int64_t depth_ = 0;  // 0 = not changed yet
  Lap lap_;
  std::optional<Time> free_at_;   // when the last version was made
  std::optional<Time> ready_at_;  // when the next batch was complete
  bool is_paced_ = false;         // only the pace kept the gate closed at that time
  // The running trial, and the state before it.
  Trial trial_ = Trial::kNone;
  bool is_shallower_ = false;
  int64_t depth_before_ = 0;
  Duration took_before_;  // of one version
  int64_t rest_ = 0;      // laps before the next trial
  int64_t next_rest_ = 0;
};

}  // namespace primerl
