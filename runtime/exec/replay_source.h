/// ReplaySource: what an executor follows when it takes up a run that was cut off (recovery.h makes
/// one from a record): a step_source for every group, then the moment when all resume.
///
///   1. every group starts at its recorded time and takes its recorded steps, in any order between
///      groups that their messages allow;
///   2. when no step_source knows a further step, the executor calls resume_live() once, sets its
///   clock to
///      ended() and lets every group resume (actor_group.h);
///   3. from there it is a run like any other.
///
/// Processes may be absent: they follow nothing, and begin again when the others resume, whose
/// groups hear then that the old incarnation died and that a new one is there.
///
/// A group that cannot follow its record has a fault, and the run must not go on.
///
/// Threads: step_source() and fault() of a group on that group's; resume_live() on any, once; the
/// rest on any.
#pragma once

#include <optional>
#include <span>

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
  /// The last moment that was recorded: the clock of the run goes on from there.
  virtual Time ended() const = 0;
  /// Incarnation of the recorded process: its messages carry it, so those of the recovered run do.
  virtual uint32_t incarnation() const = 0;
  /// Every group is at the end of its record: resources answer for themselves from now on.
  virtual void resume_live() = 0;
  /// What a group waits for that nobody sends: said when nothing can move any more.
  virtual Error stuck() const = 0;
  virtual std::span<const ProcessId> absent() const { return {}; }
};

}  // namespace primerl
