/// What SIGINT, SIGTERM and SIGHUP ask of a run or an agent: to drain, to stop, to kill.
///
///   SIGINT (Ctrl-C)    each one asks for more: drain, stop, kill
///   SIGTERM, SIGHUP    drain; repeats within kTermGrace ask for nothing more, because a batch
///                      system sends several, to every process, within milliseconds. One after the
///                      grace asks for more.
///
/// Workers answer none of them (runtime/program/signals.h): they hear from the control plane or the
/// agent alone, so a signal to a whole process group or job drains the run.
#pragma once

#include <atomic>
#include <csignal>
#include <cstdint>

#include "graph/base/clock.h"

namespace primerl {

/// What Kubernetes and Slurm leave before SIGKILL is 30 s by default.
inline constexpr Duration kTermGrace = Duration::seconds(25);

/// The requests so far. take() may interrupt itself, on any thread: atomics alone, no lock.
class StopRequests {
 public:
  /// `now_ns`: of a clock that never goes back; above 0.
  void take(int signal, int64_t now_ns);
  /// 1 asks to drain, 2 to stop, 3 and more to kill.
  int count() const { return count_; }
  /// The first signal; 0 before.
  int first() const { return first_; }
  void clear();

 private:
  std::atomic<int> count_{0};
  std::atomic<int> first_{0};
  std::atomic<int64_t> asked_at_ns_{0};  // by the SIGTERM or SIGHUP that counted last
};

/// Takes the three signals of this process while it lives; one at a time.
class SignalCounter {
 public:
  SignalCounter();
  SignalCounter(const SignalCounter&) = delete;
  SignalCounter& operator=(const SignalCounter&) = delete;
  ~SignalCounter();
  static int count();
  /// The first of them; 0 before.
  static int first();

 private:
  struct sigaction before_[3];
};

}  // namespace primerl
