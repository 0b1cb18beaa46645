/// HandlerWatch: which handlers of a process have run long without progress, and the texts for a
/// person: one when a handler passes the limit, one when it has returned.
///
/// A sign of life is the begin of a handler or its call of services().progress(). Call check() for
/// every group periodically, with a clock that does not go back.
///
/// Threads: check() from one; last_activity() and num_alarms() from any.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/exec/actor_group.h"
#include "runtime/exec/counter.h"

namespace primerl {

/// What a running group is handling: "message 812 of 'rollout.group -> trainer.group'
/// (TrajectoryGroup, step 4411)", "timer 'applied' (step 12)", "a work turn (step 90)".
std::string handling_text(const Plan& plan, const Wiring& wiring, const GroupView& view);

class HandlerWatch {
 public:
  struct Alarm {
    std::string name;  // of the instance, or of the group in a work turn
    std::string text;
  };

  /// `alarm_after` 0: no alarms, but signs of life are kept. Plan and wiring outlive the watch.
  HandlerWatch(const Plan& plan, const Wiring& wiring, Duration alarm_after);

  /// `has_deadline`: the group's owner abandons late handlers itself and reports it; no alarm here.
  std::optional<Alarm> check(const GroupView& view, Time now, bool has_deadline);

  /// Of the handler that ran at the last check().
  Time last_activity(GroupId group) const {
    return Time::from_nanoseconds(static_cast<int64_t>(seen_[group.index()].activity.get()));
  }
  uint64_t num_alarms(GroupId group) const { return seen_[group.index()].num_alarms.get(); }

 private:
  struct Seen {
    Counter activity, num_alarms;
    uint64_t num_progress = 0;
    uint64_t alarmed_step = 0;  // 0: none
    Alarm alarm;                // of that step: the instance, and what it handles
    Time began;                 // when that handler began
  };

  const Plan& plan_;
  const Wiring& wiring_;
  const Duration alarm_after_;
  std::vector<Seen> seen_;  // by GroupId
};

/// Text of a duration: whole seconds from one second on, else milliseconds.
std::string rounded_text(Duration duration);

}  // namespace primerl
