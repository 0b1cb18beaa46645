/// Environment: gives tasks and judges what a policy answers.
///
/// Called by the Env actor alone, one call at a time, on that actor's own thread. Stateless: a task
/// follows from (seed, ordinal) and a step from the task and all actions so far, so a restarted or
/// replayed run sees the same world and no call needs an earlier one. A returned error costs the
/// rollout it was for, not the run. Texts are UTF-8 and are tokenised exactly as they stand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/base/random.h"
#include "graph/base/result.h"

namespace primerl {

/// One task: what the policy reads first, and what the judge knows.
struct EnvironmentTask {
  std::string prompt;
  std::string answer;  // the environment's own; never shown to the policy
};

/// What became of the last action: either more text to read, or the end with its reward.
struct EnvironmentStep {
  std::string text;   // appended to the trajectory; empty when done
  double reward = 0;  // in [0, 1]; counts only when done
  bool done = false;
};

class Environment {
 public:
  virtual ~Environment() = default;
  /// The task of `ordinal`; draws only from `random`, which is keyed by run seed, tenant and
  /// ordinal.
  virtual Result<EnvironmentTask> task(uint64_t ordinal, RandomStream random) = 0;
  /// Judges `actions`, the decoded text of every turn of one trajectory so far (>= 1, special
  /// tokens left out).
  virtual Result<EnvironmentStep> step(const EnvironmentTask& task,
                                       const std::vector<std::string>& actions) = 0;
  /// What a perfect policy says in `task`, turn by turn: what supervised examples are made of. The
  /// steps it leads to end with the last turn and not before. Empty when the environment knows
  /// none; here, the answer in one turn.
  virtual std::vector<std::string> demonstration(const EnvironmentTask& task) const {
    if (task.answer.empty()) return {};
    return {task.answer};
  }
};

}  // namespace primerl
