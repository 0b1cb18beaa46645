/// RunLifecycle: the phase of one start of a run, and how it ends: what Ctrl-C, a lost worker, a
/// full disk or a stall do in each phase.
///
///   kStarting -> [kFollowing] -> kRunning -> kDraining -> kStopping
///
/// A fault or the second Ctrl-C leads from every phase to kStopping; no phase is entered again. The
/// first fault is the reason of the end: later ones may be its effects.
///
/// A state machine: no thread, no clock, no process. The owner (RunSession) tells it what happened,
/// and does what the returned Action says. Not thread-safe.
#pragma once

#include <string>

#include "graph/base/result.h"

namespace primerl {

/// How a start of a run ended.
struct RunEnding {
  enum class How { kFinished, kInterrupted, kFailed, kStalled };
  How how = How::kFinished;
  std::string why;  // of kFailed and kStalled: the text for a person
  /// The record could not be followed to its end: the run may go on from its checkpoint alone.
  bool has_left_record = false;
  /// A worker is lost that the others need: the run may be resumed.
  bool has_lost_worker = false;
  bool was_following = false;  // the record, when it ended
};

class RunLifecycle {
 public:
  enum class Phase { kStarting, kFollowing, kRunning, kDraining, kStopping };
  /// What the owner has to do now.
  enum class Action {
    kNothing,
    kDrain,    // let what is in flight end
    kStop,     // tell every worker to stop
    kKillAll,  // now
  };

  /// `follows_record`: the workers first repeat a record. `may_be_taken_up`: after the loss of a
  /// worker the run may begin again (restarts_max > 0).
  RunLifecycle(bool follows_record, bool may_be_taken_up);

  /// All workers have been started and connected.
  void on_launched();
  /// A training step that is not in the record.
  void on_step();
  /// The record is at its end.
  void on_followed();
  /// A request to stop (stop_signals.h): the first drains, the second stops, the third kills.
  Action on_signal();
  /// A drain was asked for before there was anything to drain.
  Action on_nothing_to_drain() { return stop(); }
  /// An agent was told to stop: it wants the run to end. Drains once.
  Action on_agent_leaving();
  /// An agent is lost, and its processes with it as far as the control plane can know. `was_up`:
  /// the run had begun, so that another start may succeed.
  Action on_agent_lost(const Error& why, bool was_up);
  /// A worker says that it ended in failure.
  Action on_worker_failed() { return stop(); }
  /// A worker is dead that cannot be started again alone. `was_up`: as above.
  Action on_worker_lost(const std::string& death, bool was_up);
  /// A worker ended before all were launched. One that exited by itself would exit again.
  void on_worker_died_early(bool by_signal);
  /// No progress (kDeadline), or a worker that disagrees, breaks the protocol or cannot be started
  /// again.
  Action on_cannot_go_on(const Error& why);
  /// The run folder cannot be written. kStop once; afterwards nothing is written any more.
  Action on_cannot_write(const Error& why);
  /// A reason that the owner found; the first one counts.
  void note_fault(const std::string& why);

  Phase phase() const { return phase_; }
  /// For the status line; "" while it runs.
  std::string phase_text() const;
  bool is_stopping() const { return phase_ == Phase::kStopping; }
  bool is_following() const { return is_following_; }
  bool has_lost_agent() const { return has_lost_agent_; }
  bool is_told_to_leave() const { return is_told_to_leave_; }
  bool cannot_write() const { return cannot_write_; }
  /// Two signals or more: how single workers ended no longer matters.
  bool is_forced() const { return num_signals_ >= 2; }
  const std::string& fault() const { return fault_; }

  /// The launch failed: `why`, or "" when it was interrupted.
  RunEnding end_of_launch(const Error& why) const;
  /// All workers have ended. `why` and `is_stalled` are what they reported; `may_blame_record`:
  /// each of them reported how it ended, and none of them that the disk refused something.
  RunEnding end(std::string why, bool is_stalled, bool may_blame_record) const;

 private:
  Action stop();
  bool is_interrupted() const { return num_signals_ > 0 || is_told_to_leave_; }

  const bool may_be_taken_up_;
  Phase phase_ = Phase::kStarting;
  bool is_following_;
  int num_signals_ = 0;
  bool is_stalled_ = false;
  bool has_lost_agent_ = false;
  bool is_told_to_leave_ = false;
  bool has_lost_worker_ = false;
  bool has_left_record_ = false;
  bool cannot_write_ = false;
  std::string fault_;
};

}  // namespace primerl
