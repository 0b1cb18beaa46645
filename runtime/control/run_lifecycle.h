/// RunLifecycle: the phase of one start of a run, and how it ends. It defines what Ctrl-C, a lost
/// worker, a full disk or a stall do in each phase.
///
///   kStarting -> [kFollowing] -> kRunning -> kDraining -> kStopping
///
/// A fault or the second Ctrl-C leads from every phase to kStopping. No phase is entered again. The
/// first fault is the reported reason, because later ones may be its effects.
///
/// A state machine: no thread, no clock, no process. The owner (RunMonitor) reports events to it
/// and does what the returned Action says. Not thread-safe.
#pragma once

#include <string>

#include "graph/base/result.h"

namespace primerl {

/// How a start of a run ended.
struct RunEnding {
  enum class How { kFinished, kInterrupted, kFailed, kStalled };
  How how = How::kFinished;
  std::string why;  // for kFailed and kStalled: the text for a person
  /// The record could not be followed to its end: the run may only resume from its checkpoint.
  bool must_skip_record = false;
  /// A worker that the others need is lost: the run may be resumed.
  bool has_lost_worker = false;
  bool was_following = false;  // the run was following the record when it ended
};

class RunLifecycle {
 public:
  enum class Phase { kStarting, kFollowing, kRunning, kDraining, kStopping };
  /// The next act of the owner.
  enum class Action {
    kNothing,
    kDrain,    // let work in flight complete
    kStop,     // ask every worker to stop
    kKillAll,  // kill every worker now
  };

  /// `follows_record`: the workers first repeat a record. `may_resume`: the run may restart
  /// after the loss of a worker (restarts_max > 0).
  RunLifecycle(bool follows_record, bool may_resume);

  /// All workers have been started and connected.
  void on_launched();
  /// A training step that is not in the record was made, or the run waits for tenants.
  void on_step();
  /// The end of the record was reached.
  void on_followed();
  /// A request to stop (stop_signals.h): the first drains, the second stops, the third kills.
  Action on_signal();
  /// A drain was requested before there was anything to drain.
  Action on_nothing_to_drain() { return stop(); }
  /// An agent was asked to stop, so it asks the run to end. Drains once.
  Action on_agent_leaving();
  /// An agent is lost; its processes must be treated as lost too. `was_up`: the run had started, so
  /// another start may succeed.
  Action on_agent_lost(const Error& why, bool was_up);
  /// A worker reports that it failed.
  Action on_worker_failed() { return stop(); }
  /// A worker died that cannot be restarted alone. `was_up`: as above.
  Action on_worker_lost(const std::string& death, bool was_up);
  /// A worker ended before all were launched. A worker that exited by itself would exit again.
  void on_worker_died_early(bool by_signal);
  /// No progress (kDeadline); or a worker sent a wrong hello, broke the protocol or cannot be
  /// restarted.
  Action on_cannot_go_on(const Error& why);
  /// The run folder cannot be written. Returns kStop once; afterwards nothing is written any more.
  Action on_cannot_write(const Error& why);
  /// Records a reason that the owner found; only the first one counts.
  void note_fault(const std::string& why);

  Phase phase() const { return phase_; }
  /// For the status line; "" while the run runs normally.
  std::string phase_text() const;
  bool is_stopping() const { return phase_ == Phase::kStopping; }
  bool is_following() const { return is_following_; }
  bool has_lost_agent() const { return has_lost_agent_; }
  bool cannot_write() const { return cannot_write_; }
  /// After two signals: how single workers ended no longer matters.
  bool is_forced() const { return num_signals_ >= 2; }
  const std::string& fault() const { return fault_; }

  /// The launch failed with `why`, or was interrupted if `why` is "".
  RunEnding end_of_launch(const Error& why) const;
  /// All workers have ended. `why` and `is_stalled` are what they reported; `may_blame_record`:
  /// each of them reported how it ended, and none of them that the disk refused something.
  RunEnding end(std::string why, bool is_stalled, bool may_blame_record) const;

 private:
  Action stop();
  bool is_interrupted() const { return num_signals_ > 0 || is_told_to_leave_; }

  const bool may_resume_;
  Phase phase_ = Phase::kStarting;
  bool is_following_;
  int num_signals_ = 0;
  bool is_stalled_ = false;
  bool has_lost_agent_ = false;
  bool is_told_to_leave_ = false;
  bool has_lost_worker_ = false;
  bool must_skip_record_ = false;
  bool cannot_write_ = false;
  std::string fault_;
};

}  // namespace primerl
