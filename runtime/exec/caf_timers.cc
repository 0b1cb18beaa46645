#include "runtime/exec/caf_timers.h"

#include <algorithm>
#include <chrono>

namespace primerl {

CafTimers::CafTimers(const RunClock& clock, size_t num_groups, Duration tick,
                     std::function<void(GroupId)> ring, std::function<void()> look)
    : clock_(clock),
      tick_(tick),
      ring_(std::move(ring)),
      look_(std::move(look)),
      armed_(num_groups, kNever) {
  thread_ = std::thread([this] { run(); });
}

void CafTimers::arm(GroupId group, Time at) {
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    if (armed_[group.index()] == kNever) ++num_armed_;
    armed_[group.index()] = at;
    is_first = alarms_.empty() || at < alarms_.top().at;
    alarms_.push({at, group});
  }
  if (is_first) changed_.notify_one();
}

bool CafTimers::has_alarm() const {
  const std::lock_guard lock(mutex_);
  return num_armed_ > 0;
}

void CafTimers::notice() {
  {
    const std::lock_guard lock(mutex_);
    is_noticed_ = true;
  }
  changed_.notify_one();
}

void CafTimers::look_by(Time at) {
  {
    const std::lock_guard lock(mutex_);
    if (at >= look_by_) return;
    look_by_ = at;
  }
  changed_.notify_one();
}

void CafTimers::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

std::vector<GroupId> CafTimers::take_due(Time now) {
  std::vector<GroupId> due;
  while (!alarms_.empty() && alarms_.top().at <= now) {
    const Alarm alarm = alarms_.top();
    alarms_.pop();
    // Ignores an alarm that was replaced.
    if (armed_[alarm.group.index()] != alarm.at) continue;
    armed_[alarm.group.index()] = kNever;
    --num_armed_;
    due.push_back(alarm.group);
  }
  return due;
}

void CafTimers::run() {
  Time next_look = clock_.now() + tick_;
  std::unique_lock lock(mutex_);
  while (!is_stopping_) {
    const Time now = clock_.now();
    const auto due = take_due(now);
    const bool looks = is_noticed_ || now >= std::min(next_look, look_by_);
    if (!due.empty() || looks) {
      if (looks) {
        is_noticed_ = false;
        look_by_ = kNever;
      }
      lock.unlock();
      for (const GroupId group : due) ring_(group);
      if (looks) {
        look_();
        next_look = clock_.now() + tick_;
      }
      lock.lock();
      continue;
    }
    Time until = std::min(next_look, look_by_);
    if (!alarms_.empty()) until = std::min(until, alarms_.top().at);
    changed_.wait_until(lock, clock_.at(until));
  }
}

}  // namespace primerl
