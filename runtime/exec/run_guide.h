/// RunGuide: what an executor follows when it takes up a run that was cut off (recovery.h makes one
/// from a record): a guide for every host, then the moment when all go live.
///
///   1. every host starts at its recorded time and takes its recorded steps, in any order between
///      hosts that their messages allow;
///   2. when no guide knows a further step, the executor calls go_live() once, sets its clock to
///      ended() and lets every host go live (host.h);
///   3. from there it is a run like any other.
///
/// Processes may be absent: they follow nothing, and begin again when the others go live, whose
/// hosts hear then that the old incarnation died and that a new one is there.
///
/// A host that cannot follow its record has a fault, and the run must not go on.
///
/// Threads: guide() and fault() of a host on that host's; go_live() on any, once; the rest on any.
#pragma once

#include <optional>
#include <span>

#include "runtime/exec/host.h"

namespace primerl {

class RunGuide {
 public:
  virtual ~RunGuide() = default;
  virtual StepGuide& guide(HostId host) = 0;
  /// Why a host cannot go on as recorded; none while it can.
  virtual std::optional<Error> fault(HostId host) const = 0;
  /// services().now() of the recorded start.
  virtual Time started(HostId host) const = 0;
  /// The last moment that was recorded: the clock of the run goes on from there.
  virtual Time ended() const = 0;
  /// Incarnation of the recorded process: its messages carry it, so those of the recovered run do.
  virtual uint32_t epoch() const = 0;
  /// Every host is at the end of its record: resources answer for themselves from now on.
  virtual void go_live() = 0;
  /// What a host waits for that nobody sends: said when nothing can move any more.
  virtual Error stuck() const = 0;
  virtual std::span<const ProcessId> absent() const { return {}; }
};

}  // namespace primerl
