/// ReplaySource: what an executor follows when it resumes a run that was cut off (recovery.h makes
/// one from a record): a step_source for every group, then the moment when all resume.
///
///   1. every group starts at its recorded time, or goes on from its part of a cut, and takes its
///   recorded steps, in any order between
///      groups that their messages allow;
///   2. when no step_source has a further step, the executor calls resume() once, sets its
///      clock to ended() and lets every group resume (actor_group.h);
///   3. from then on it is a run like any other.
///
/// Processes may be absent: they have no record to follow and start from the beginning when the
/// others resume, whose groups are told then that the old incarnation died and that a new one is
/// up.
///
/// A group that cannot follow its record has a fault, and the run must stop.
///
/// Threads: step_source() and fault() of a group on that group's; resume() on any, once; the
/// rest on any.
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
  /// Why a group cannot go on as recorded; none while it can.
  virtual std::optional<Error> fault(GroupId group) const = 0;
  /// services().now() of the recorded start.
  virtual Time started(GroupId group) const = 0;
  /// The last moment that was recorded: the clock of the run continues from there.
  virtual Time ended() const = 0;
  /// Incarnation of the recorded process: its messages carry it, so the recovered run uses it too.
  virtual uint32_t incarnation() const = 0;
  /// Every group is at the end of its record: resources do real work from now on.
  virtual void resume() = 0;
  /// Which message a group waits for that nobody sends: asked when no group can make progress.
  virtual Error stuck() const = 0;
  virtual std::span<const ProcessId> absent() const { return {}; }
  /// The state from which a group follows its record, of a cut; null: it starts as it was made.
  virtual const GroupState* state_of(GroupId group) const {
    (void)group;
    return nullptr;
  }
  /// Messages of the cut that are on their way to the group.
  virtual std::vector<SavedMessage> in_transit_to(GroupId group) const {
    (void)group;
    return {};
  }
};

}  // namespace primerl
