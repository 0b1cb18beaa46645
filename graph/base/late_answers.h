/// LateAnswers: a resource whose answers come from a thread of its own, later than the call.
///
/// The actor group that owns the resource sets a function that gives it a work call. So an actor
/// sees the answer soon, although no message came. Threads: set_wake() on the group's thread before
/// the first call; the function is called on any thread.
#pragma once

#include <functional>

namespace primerl {

class LateAnswers {
 public:
  virtual ~LateAnswers() = default;
  /// `wake` is called when an answer has arrived.
  virtual void set_wake(std::function<void()> wake) = 0;
};

}  // namespace primerl
