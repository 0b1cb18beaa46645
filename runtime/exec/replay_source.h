/// ReplaySource: the record that an executor follows when it resumes an interrupted run (recovery.h
/// makes it from a record). It has a step_source for every group:
///
///   1. every group starts at its recorded time, or continues from its part of a cut. It makes its
///      recorded steps. The order of steps between groups is free, as their messages allow;
///   2. when no step_source has a further step, the executor calls resume() once, sets its
///      clock to ended() and lets every group resume (actor_group.h);
///   3. from then on it is a normal run.
///
/// Processes may be absent. They have no record to follow, and start from the beginning when the
/// others resume. Then the groups of the others are notified that the old incarnation died and that
/// a new one runs.
///
/// If a group cannot follow its record, fault() is set and the run must stop.
///
/// Threads: step_source() and fault() on their group's thread; resume() on any, once; the rest on
/// any.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "runtime/exec/actor_group.h"

namespace primerl {

class ReplaySource {
 public:
  virtual ~ReplaySource() = default;
  virtual StepSource& step_source(GroupId group) = 0;
  /// Why a group cannot follow its record; none if it can.
  virtual std::optional<Error> fault(GroupId group) const = 0;
  /// What services().now() answered at the recorded start.
  virtual Time started(GroupId group) const = 0;
  /// The last recorded time: the run's clock continues from there.
  virtual Time ended() const = 0;
  /// Incarnation of the recorded process. Its messages carry it, so the recovered run uses it too.
  virtual uint32_t incarnation() const = 0;
  /// Every group reached the end of its record: from now on resources do real work.
  virtual void resume() = 0;
  /// Names the message that a group waits for and that no group will send. Called when no group can
  /// make progress.
  virtual Error stuck() const = 0;
  virtual std::span<const ProcessId> absent() const { return {}; }
  /// The group's state in a cut, from which it follows its record; null: the group starts from the
  /// beginning.
  virtual const GroupState* state_of(GroupId group) const {
    (void)group;
    return nullptr;
  }
  /// Messages of the cut that the group has not received yet.
  virtual std::vector<SavedMessage> in_transit_to(GroupId group) const {
    (void)group;
    return {};
  }
};

}  // namespace primerl
