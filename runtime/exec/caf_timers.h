/// CafTimers: the timer service of a process: one thread, one heap, joined at the end.
///
/// Every group has at most one alarm, its earliest timer. ring() is called once for it, on the
/// service's thread, at or after its time. look() is called every `tick`, soon after notice(), and
/// at the time of look_by(): it checks deadlines, stalls and the end of a drain. Neither may block.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

#include "graph/base/ids.h"
#include "runtime/exec/run_clock.h"

namespace primerl {

/// The time of a group without an alarm.
inline constexpr Time kNever = Time::from_nanoseconds(INT64_MAX);

class CafTimers {
 public:
  /// Times are of `clock`, which must stay valid while the timers exist. Call notice() after that
  /// clock was set.
  CafTimers(const RunClock& clock, size_t num_groups, Duration tick,
            std::function<void(GroupId)> ring, std::function<void()> look);
  ~CafTimers() { stop(); }

  /// Replaces the group's alarm. Any thread.
  void arm(GroupId group, Time at);
  bool has_alarm() const;
  /// Asks for a look() soon. Any thread.
  void notice();
  /// Asks for a look() at `at` or earlier. The earliest counts, until the next look(). Any thread.
  void look_by(Time at);
  /// No ring() or look() is called after it returns. Idempotent; must not be called from ring() or
  /// look().
  void stop();

 private:
  struct Alarm {
    Time at;
    GroupId group;
    bool operator>(const Alarm& other) const { return at > other.at; }
  };
  void run();
  std::vector<GroupId> take_due(Time now);  // call under mutex_

  const RunClock& clock_;
  const Duration tick_;
  const std::function<void(GroupId)> ring_;
  const std::function<void()> look_;

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // may contain replaced alarms
  std::priority_queue<Alarm, std::vector<Alarm>, std::greater<>> alarms_;
  std::vector<Time> armed_;  // by group; kNever without an alarm
  size_t num_armed_ = 0;
  bool is_noticed_ = false;
  Time look_by_ = kNever;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace primerl
