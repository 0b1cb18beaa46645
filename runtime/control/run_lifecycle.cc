#include "runtime/control/run_lifecycle.h"

#include <utility>

namespace primerl {

RunLifecycle::RunLifecycle(bool follows_record, bool may_resume)
    : may_resume_(may_resume), is_following_(follows_record) {}

void RunLifecycle::on_launched() {
  if (phase_ == Phase::kStarting && is_following_) phase_ = Phase::kFollowing;
}

void RunLifecycle::on_step() {
  if (is_following_) return;
  if (phase_ == Phase::kStarting || phase_ == Phase::kFollowing) phase_ = Phase::kRunning;
}

void RunLifecycle::on_followed() {
  is_following_ = false;
  on_step();
}

RunLifecycle::Action RunLifecycle::stop() {
  return std::exchange(phase_, Phase::kStopping) == Phase::kStopping ? Action::kNothing
                                                                     : Action::kStop;
}

RunLifecycle::Action RunLifecycle::on_signal() {
  switch (++num_signals_) {
    case 1:
      if (phase_ != Phase::kStopping) phase_ = Phase::kDraining;
      return Action::kDrain;
    case 2:
      return stop();
    default:
      return Action::kKillAll;
  }
}

RunLifecycle::Action RunLifecycle::on_agent_leaving() {
  if (is_told_to_leave_ || is_stopping()) return Action::kNothing;
  is_told_to_leave_ = true;
  phase_ = Phase::kDraining;
  return Action::kDrain;
}

RunLifecycle::Action RunLifecycle::on_agent_lost(const Error& why, bool was_up) {
  if (std::exchange(has_lost_agent_, true)) return Action::kNothing;
  if (!is_stopping()) {
    note_fault(why.text());
    has_lost_worker_ = was_up && may_resume_;
  }
  phase_ = Phase::kStopping;
  return Action::kKillAll;
}

RunLifecycle::Action RunLifecycle::on_worker_lost(const std::string& death, bool was_up) {
  if (is_stopping()) return Action::kNothing;
  // After an earlier fault, another start would end with the same fault.
  const bool may_come_back = was_up && fault_.empty() && may_resume_;
  note_fault(death);
  if (!may_come_back) return stop();
  // The work of the other processes is in their records, so they need not drain.
  has_lost_worker_ = true;
  phase_ = Phase::kStopping;
  return Action::kKillAll;
}

void RunLifecycle::on_worker_died_early(bool by_signal) {
  has_lost_worker_ = by_signal && may_resume_;
}

RunLifecycle::Action RunLifecycle::on_cannot_go_on(const Error& why) {
  note_fault(why.text());
  is_stalled_ = is_stalled_ || why.code() == Code::kDeadline;
  must_skip_record_ = must_skip_record_ || (is_following_ && is_stalled_);
  return stop();
}

RunLifecycle::Action RunLifecycle::on_cannot_write(const Error& why) {
  if (std::exchange(cannot_write_, true) || !fault_.empty()) return Action::kNothing;
  note_fault(why.text());
  return stop();
}

void RunLifecycle::note_fault(const std::string& why) {
  if (fault_.empty()) fault_ = why;
}

std::string RunLifecycle::phase_text() const {
  switch (phase_) {
    case Phase::kStarting:
      return "starting";
    case Phase::kFollowing:
      return "following the record";
    case Phase::kRunning:
      return "";
    case Phase::kDraining:
      return "draining";
    case Phase::kStopping:
      return "stopping";
  }
  return "";
}

RunEnding RunLifecycle::end_of_launch(const Error& why) const {
  RunEnding ending;
  ending.how = RunEnding::How::kInterrupted;
  if (is_interrupted()) return ending;
  ending.how = RunEnding::How::kFailed;
  ending.why = why.text();
  ending.has_lost_worker = has_lost_worker_;
  // A worker reads the record, and the saved state, before it is ready.
  ending.was_following = is_following_;
  return ending;
}

RunEnding RunLifecycle::end(std::string why, bool is_stalled, bool may_blame_record) const {
  RunEnding ending;
  if (why.empty()) {
    ending.how = is_interrupted() ? RunEnding::How::kInterrupted : RunEnding::How::kFinished;
    return ending;
  }
  ending.how = is_stalled || is_stalled_ ? RunEnding::How::kStalled : RunEnding::How::kFailed;
  ending.why = std::move(why);
  ending.was_following = is_following_;
  // The record is known to be the cause only if every worker reported its end. A worker that died
  // may also die with the checkpoint.
  ending.must_skip_record = must_skip_record_ || (is_following_ && fault_.empty() &&
                                                  num_signals_ == 0 && may_blame_record);
  ending.has_lost_worker = has_lost_worker_ && num_signals_ == 0;
  if (is_following_ && !ending.must_skip_record && !ending.has_lost_worker)
    ending.why += "\nit was following its record; --from-checkpoint resumes without it";
  return ending;
}

}  // namespace primerl
