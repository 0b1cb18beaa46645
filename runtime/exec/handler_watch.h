/// HandlerWatch: finds handlers of a process that have run long without progress, and writes two
/// texts for a person: when a handler passes the limit, and when it returns.
///
/// The begin of a handler and each call of services().progress() are signs of life. Call check()
/// for every group periodically, with a clock that does not go back.
///
/// Threads: check() from one thread; last_activity() and num_alarms() from any.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/exec/actor_group.h"
#include "runtime/exec/counter.h"

namespace primerl {

/// The input that a running group handles: "message 812 of 'rollout.group -> trainer.group'
/// (TrajectoryGroup, step 4411)", "timer 'applied' (step 12)", "a work call (step 90)".
std::string handling_text(const Plan& plan, const Wiring& wiring, const GroupView& view);

class HandlerWatch {
 public:
  struct Alarm {
    std::string name;  // of the instance; in a work call, of the group
    std::string text;
  };

  /// `alarm_after` 0: no alarms, but signs of life are still kept. Plan and wiring must stay valid
  /// while the watch exists.
  HandlerWatch(const Plan& plan, const Wiring& wiring, Duration alarm_after);

  /// `has_deadline`: the group's owner itself abandons and reports late handlers, so no alarm is
  /// made here.
  std::optional<Alarm> check(const GroupView& view, Time now, bool has_deadline);

  /// The last sign of life of the handler that ran at the last check().
  Time last_activity(GroupId group) const {
    return Time::from_nanoseconds(static_cast<int64_t>(seen_[group.index()].activity.get()));
  }
  uint64_t num_alarms(GroupId group) const { return seen_[group.index()].num_alarms.get(); }

 private:
  struct Seen {
    Counter activity, num_alarms;
    uint64_t num_progress = 0;
    uint64_t alarmed_step = 0;  // 0: none
    Alarm alarm;                // for alarmed_step: the instance, and its input
    Time began;                 // when that handler began
  };

  const Plan& plan_;
  const Wiring& wiring_;
  const Duration alarm_after_;
  std::vector<Seen> seen_;  // by GroupId
};

/// Text of a duration: in whole seconds from one second up, in milliseconds below.
std::string rounded_text(Duration duration);

}  // namespace primerl
