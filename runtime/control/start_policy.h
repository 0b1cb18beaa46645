/// StartPolicy: decides after the end of a start whether the same command starts the run again, and
/// from what.
///
///   the record could not be followed   again at once, from the checkpoint only
///   a worker was lost                  again after a pause, from the record; as often as
///                                      `restarts_max` within `restart_window` allows
///   anything else                      the end
///
/// A value; it has no clock; one thread.
#pragma once

#include "runtime/control/restart_budget.h"
#include "runtime/control/run_lifecycle.h"

namespace primerl {

class StartPolicy {
 public:
  /// If workers die this many times in a row while they follow a record, the record is not used
  /// again.
  static constexpr int kDeathsFollowingMax = 2;

  struct Next {
    enum class What {
      kEnd,        // the run ends as `ending` says
      kExhausted,  // it would start again, but no restart is left
      kAgain,
    };
    What what = What::kEnd;
    // For kAgain.
    Duration pause;                // time to wait before the start
    bool from_checkpoint = false;  // do not use the record
  };

  StartPolicy(int64_t restarts_max, Duration restart_window)
      : restarts_(restarts_max, restart_window) {}

  /// `num_steps`: steps that the run has reached, summed over all tenants.
  Next after(const RunEnding& ending, int64_t num_steps, Time now);
  /// Number of restarts that count against `restarts_max` now.
  size_t num_restarts() const { return restarts_.num_taken(); }

 private:
  RestartBudget restarts_;
  int64_t num_steps_ = 0;         // the maximum so far
  int num_deaths_following_ = 0;  // in the newest starts in a row
};

}  // namespace primerl
