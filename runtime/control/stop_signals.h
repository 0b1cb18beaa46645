/// The meaning of SIGINT, SIGTERM and SIGHUP for a run or an agent: drain, stop, kill.
///
///   SIGINT (Ctrl-C)    the first drains, the second stops, the third kills
///   SIGTERM, SIGHUP    drain; repeats within kTermGrace change nothing, because a batch
///                      system sends several, to every process, within milliseconds. One after the
///                      grace counts like the next SIGINT.
///
/// Workers ignore all three (runtime/program/signals.h): only the control plane or the agent tells
/// them to stop. So a signal to a whole process group or job drains the run.
#pragma once

#include <atomic>
#include <csignal>
#include <cstdint>

#include "graph/base/clock.h"

namespace primerl {

/// Kubernetes and Slurm wait 30 s before SIGKILL by default; this is shorter.
inline constexpr Duration kTermGrace = Duration::seconds(25);

/// The requests so far. take() is called from signal handlers: it may interrupt itself, on any
/// thread. So it uses atomics only and no lock.
class StopRequests {
 public:
  /// `now_ns`: from a clock that never goes back; above 0.
  void take(int signal, int64_t now_ns);
  /// 1: drain; 2: stop; 3 and more: kill.
  int count() const { return count_; }
  /// The first signal; 0 if there was none.
  int first() const { return first_; }
  void clear();

 private:
  std::atomic<int> count_{0};
  std::atomic<int> first_{0};
  std::atomic<int64_t> asked_at_ns_{0};  // time of the last SIGTERM or SIGHUP that counted
};

/// Handles the three signals of this process while it exists. At most one may exist.
class SignalCounter {
 public:
  SignalCounter();
  SignalCounter(const SignalCounter&) = delete;
  SignalCounter& operator=(const SignalCounter&) = delete;
  ~SignalCounter();
  static int count();
  /// The first signal; 0 if there was none.
  static int first();

 private:
  struct sigaction before_[3];
};

}  // namespace primerl
