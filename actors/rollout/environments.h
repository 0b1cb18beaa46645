/// Environments: which instance of the environment serves which trajectory.
///
/// A trajectory stays with the instance that has its earlier turns. A new one goes to the instance
/// with the fewest. The instance that gives the tasks judges only when there is no other: a slow
/// judgement must not delay new tasks. A value; not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "graph/base/ids.h"

namespace primerl {

/// Most ended trajectories that wait to be sent with the next action. Above it the oldest are
/// dropped; the environment then drops them as least recently used.
inline constexpr size_t kEndedTrajectoriesMax = 1024;

class Environments {
 public:
  void gives_tasks(InstanceId instance) { task_giver_ = instance; }
  /// None before the first task.
  InstanceId task_giver() const { return task_giver_; }
  /// The instance for a new trajectory; none when there is no target.
  InstanceId choose(std::span<const InstanceId> targets) const;

  void begin(InstanceId environment) { ++served_[environment].num_trajectories; }
  /// The instance serves one trajectory less.
  void end(InstanceId environment);
  /// Sends with the next action to this instance that the trajectory has ended.
  void report_ended(InstanceId environment, uint64_t trajectory);
  std::vector<uint64_t> take_ended(InstanceId environment);
  /// The instance has gone.
  void forget(InstanceId environment) { served_.erase(environment); }

  template <class F>
  static void fields(F& f) {
    f("task_giver", &Environments::task_giver_)("served", &Environments::served_);
  }

 private:
  struct Served {
    int64_t num_trajectories = 0;
    std::vector<uint64_t> ended;
    template <class F>
    static void fields(F& f) {
      f("num_trajectories", &Served::num_trajectories)("ended", &Served::ended);
    }
  };

  InstanceId task_giver_;
  std::map<InstanceId, Served> served_;
};

}  // namespace primerl
