/// CafActors: threads and scheduling from CAF, and nothing else: no message types, no behaviours of
/// ours except "take a turn". The only header that wraps CAF; no CAF type is in it.
///
/// An actor is a function that takes turns. Its WakeUp makes it take one soon; calls while it waits
/// or runs queue up, so call it only when the actor is not scheduled already. A pooled actor runs
/// on the pool's threads and must return quickly; a detached one has a thread of its own and may
/// block.
///
/// Threads: spawn() and a WakeUp may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "graph/base/result.h"

namespace primerl {

enum class TurnEnd {
  kIdle,  // wait to be woken up
  kMore,  // take another turn, behind what else is scheduled
  kQuit,  // this was the last one
};

class CafActors {
 public:
  using Turn = std::function<TurnEnd()>;
  /// Owns its actor: the actor ends when the last copy is gone and no turn is due.
  using WakeUp = std::function<void()>;

  /// Starts the pool. An Error when CAF did not take the settings.
  static Result<std::unique_ptr<CafActors>> make(int64_t pool_threads);
  /// Waits for every actor; drop the WakeUps before. After leak() it does not wait.
  ~CafActors();

  WakeUp spawn(Turn turn, bool detached);
  /// A thread will not return: keep everything that it may touch until the process ends.
  void leak();
  int64_t pool_threads() const;

 private:
  struct System;
  explicit CafActors(std::unique_ptr<System> system);
  std::unique_ptr<System> system_;
};

/// The pool's size when the graph does not say: 1 on machines of up to 4 cores, else a quarter.
int64_t default_pool_threads(int64_t num_cores);

}  // namespace primerl
