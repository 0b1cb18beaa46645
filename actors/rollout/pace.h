/// Pace: how many groups the pipe from opening to training holds. As few as keep the trainer busy:
/// every batch's worth more makes every group a version staler.
///
/// It begins at depth_min() and measures, version by version, how long the trainer waited for its
/// batch while the pace alone kept the gate shut. Once a lap, when all groups that were open at its
/// beginning have had their batch, the depth is judged:
///
///   more than a batch was ready all the lap   it shrinks by what was spare
///   the trainer waited                        a deeper pipe is tried, in proportion, at most twice
///                                             as deep
///   else, and after a trial that failed       a shallower one is tried, by a quarter
///
/// A trial has a lap to settle and one to be measured. Of what a version would take less in a pipe
/// that is merely too short, a deeper one must have won half (engines that are busy win nothing);
/// of what it would take more, a shallower one may have cost a quarter. Else the depth goes back
/// and rests, twice as long after each failure.
///
/// Times are those of deliveries, which the record has: it decides the same when it is replayed.
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
  /// After every change of `counts`: notes when the next batch was ready.
  void see_counts(const GateLimits& limits, const GateCounts& counts, PolicyVersion made, Time now);
  /// Version `made` is known to be made; once for each that the rollout learns of.
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

  /// What the versions of a lap came to.
  struct Lap {
    int64_t end = 0;  // groups, of opened - lost
    int64_t num_versions = 0;
    int64_t num_spare = 0;  // groups ready beyond a batch, the fewest
    Duration took;
    Duration waited;        // by the trainer, for its batch
    Duration waited_paced;  // the part of it while the pace kept the gate shut

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
  std::optional<Time> ready_at_;  // when the batch after it was there
  bool is_paced_ = false;         // the pace kept the gate shut at that time
  // Of a trial: what it began from.
  Trial trial_ = Trial::kNone;
  bool is_shallower_ = false;
  int64_t depth_before_ = 0;
  Duration took_before_;  // of one version
  int64_t rest_ = 0;      // laps before the next one
  int64_t next_rest_ = 0;
};

}  // namespace primerl
