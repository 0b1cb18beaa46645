/// AnswerQueue: the calls of one Outside without an answer, and the answers that its actor group
/// has not received yet.
///
/// An Outside with an I/O thread has one, and gives it the queue half of its interface: open() for
/// each call that it accepts, add() for each answer. Threads: as each method says.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "graph/outside.h"

namespace primerl {

class AnswerQueue {
 public:
  // On the group's thread.

  /// The call waits for an answer. kExhausted: kOutsideCallsMax calls do already.
  Status open(uint64_t call);
  /// Calls whose answer was not received.
  size_t num_open() const { return open_.size(); }
  /// At most kOutsideAnswersMax answers, in the order in which they were added.
  std::vector<OutsideAnswer> receive();
  /// There are answers to receive, or a fault; never after stop().
  bool has_work() const { return !is_stopped_ && has_work_; }
  /// The error of fail().
  Status fault() const;
  /// Forgets calls and answers. From now on nothing is added.
  void stop();

  // On any thread.

  bool is_stopped() const { return is_stopped_; }
  /// `wake` is called, on the thread of add() or fail(), when there is something after there was
  /// nothing.
  void set_wake(std::function<void()> wake);
  void add(OutsideAnswer answer);
  void add_all(std::vector<OutsideAnswer> answers);
  /// The Outside cannot continue. The first fault counts.
  void fail(Error why);

 private:
  std::atomic<bool> is_stopped_{false};
  std::atomic<bool> has_work_{false};
  // Used by the group's thread.
  std::unordered_set<uint64_t> open_;
  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::deque<OutsideAnswer> answers_;
  std::function<void()> wake_;
  Status fault_;
};

}  // namespace primerl
