/// CafActors: threads and scheduling from CAF. Of CAF's actors it uses one behaviour only: "take a
/// turn". No message types. The only header that wraps CAF; it contains no CAF type.
///
/// An actor is a function that takes turns. Its WakeUp schedules one turn. Calls of WakeUp while
/// the actor is scheduled or runs are queued, so call it only when the actor is not scheduled. A
/// pooled actor runs on the pool's threads and must return quickly. A detached actor has its own
/// thread and may block.
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
  kMore,  // take another turn, after actors that are already scheduled
  kQuit,  // this was the last one
};

class CafActors {
 public:
  using Turn = std::function<TurnEnd()>;
  /// Owns its actor: the actor ends when the last copy is destroyed and no turn is scheduled.
  using WakeUp = std::function<void()>;

  /// Starts the pool. An Error when CAF rejects the settings.
  static Result<std::unique_ptr<CafActors>> make(int64_t pool_threads);
  /// Waits for every actor; destroy all WakeUps before. After leak() it does not wait.
  ~CafActors();

  WakeUp spawn(Turn turn, bool detached);
  /// Call this when a thread will not return: everything that it may touch is kept until the
  /// process ends.
  void leak();
  int64_t pool_threads() const;

 private:
  struct System;
  explicit CafActors(std::unique_ptr<System> system);
  std::unique_ptr<System> system_;
};

/// The size of the pool when the graph does not set it: 1 on machines of up to 4 cores, else a
/// quarter of the cores.
int64_t default_pool_threads(int64_t num_cores);

}  // namespace primerl
