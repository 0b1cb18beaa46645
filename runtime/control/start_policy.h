/// StartPolicy: after a start of a run has ended, whether the same command starts the run again,
/// and from what.
///
///   the record could not be followed   again at once, from the checkpoint alone
///   a worker was lost                  again after a pause, from the record; as often as
///                                      `restarts_max` within `restart_window` allows
///   anything else                      the end
///
/// A value; no clock of its own; one thread.
#pragma once

#include "runtime/control/restart_budget.h"
#include "runtime/control/run_lifecycle.h"

namespace primerl {

class StartPolicy {
 public:
  /// How often in a row workers may die while they follow a record before it is left alone.
  static constexpr int kDeathsFollowingMax = 2;

  struct Next {
    enum class What {
      kEnd,        // the run has ended as `ending` says
      kExhausted,  // it would start again, but has no restart left
      kAgain,
    };
    What what = What::kEnd;
    // Of kAgain.
    Duration pause;                // to wait before
    bool from_checkpoint = false;  // leave the record alone
  };

  StartPolicy(int64_t restarts_max, Duration restart_window)
      : restarts_(restarts_max, restart_window) {}

  /// `num_steps`: of all tenants, what the run has come to.
  Next after(const RunEnding& ending, int64_t num_steps, Time now);
  /// Restarts that count against `restarts_max` now.
  size_t num_restarts() const { return restarts_.num_taken(); }

 private:
  RestartBudget restarts_;
  int64_t num_steps_ = 0;         // the most that were seen
  int num_deaths_following_ = 0;  // in the starts just before
};

}  // namespace primerl
