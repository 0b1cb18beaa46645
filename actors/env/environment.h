/// Environment: gives tasks and judges what a policy answers.
///
/// Called by the Env actor alone, one call at a time, on that actor's own thread; a node with
/// replicas has one Environment in each. A task follows from (seed, ordinal) and a step from the
/// task and all actions so far, so a restarted or replayed run sees the same world. What is costly
/// to make again (a sandbox, a game) is kept in a World between the turns; a world that was
/// lost is begun again and plays the earlier actions. A returned error costs the rollout it was
/// for, not the run. Texts are UTF-8 and are tokenised exactly as they stand.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/random.h"
#include "graph/base/result.h"
#include "graph/catalog.h"

namespace primerl {

/// One task: what the policy reads first, and what the judge knows.
struct EnvironmentTask {
  std::string prompt;
  std::string answer;  // the environment's own; never shown to the policy
};

/// What became of the last action: either more text to read, or the end with its reward.
struct EnvironmentStep {
  std::string text;   // appended to the trajectory; empty when done
  double reward = 0;  // any finite number, see reward.h; counts only when done
  bool done = false;
};

/// One trajectory's world between its turns. It dies when the trajectory has ended, or when the Env
/// actor has more of them than `worlds_max`.
class World {
 public:
  virtual ~World() = default;
  /// Judges the decoded text of the next turn, as step() of Environment gets it.
  virtual Result<EnvironmentStep> step(const std::string& action) = 0;
};

class Environment {
 public:
  virtual ~Environment() = default;
  /// The task of `ordinal`; draws only from `random`, which is keyed by run seed, tenant and
  /// ordinal.
  virtual Result<EnvironmentTask> task(uint64_t ordinal, RandomStream random) = 0;
  /// Judges `actions`, the decoded text of every turn of one trajectory so far (>= 1), without
  /// special tokens and, unless the tenant's `sampling.include_stop` says so, without the stop text
  /// that ended a turn.
  virtual Result<EnvironmentStep> step(const EnvironmentTask& task,
                                       const std::vector<std::string>& actions) = 0;
  /// A world for one trajectory of `task`, for environments that keep something between its turns;
  /// the Environment outlives it. Here: one that calls step() with all actions so far.
  virtual Result<std::unique_ptr<World>> begin(const EnvironmentTask& task);
  /// What a perfect policy says in `task`, turn by turn: what supervised examples are made of. The
  /// steps it leads to end with the last turn and not before. Empty when the environment knows
  /// none; here, the answer in one turn.
  virtual std::vector<std::string> demonstration(const EnvironmentTask& task) const {
    if (task.answer.empty()) return {};
    return {task.answer};
  }
};

/// The first `count` tasks, as `check` looks at them.
Result<std::vector<EnvironmentContract::SampleTask>> sample_tasks(Environment& environment,
                                                                  uint64_t seed, size_t count);

/// What an EnvironmentContract and a RewardContract have in common, for what `make` builds from its
/// options; the error of `make` is the one that refuses a graph.
template <class Contract, class Made, class Options>
Contract contract_made_by(std::string name, std::string doc, OptionSet options,
                          Result<std::unique_ptr<Made>> (*make)(const Options& options)) {
  Contract contract;
  contract.name = std::move(name);
  contract.doc = std::move(doc);
  contract.options = std::move(options);
  contract.make = [make](const void* bound) {
    return make(bound == nullptr ? Options() : *static_cast<const Options*>(bound));
  };
  contract.validate = [made = contract.make](const void* bound) -> Status {
    RETURN_IF_ERROR(made(bound));
    return ok();
  };
  return contract;
}

/// What the catalog says of an environment that `make` builds.
template <class Options>
EnvironmentContract environment_contract(
    std::string name, std::string doc, OptionSet options,
    Result<std::unique_ptr<Environment>> (*make)(const Options& options)) {
  auto contract = contract_made_by<EnvironmentContract>(std::move(name), std::move(doc),
                                                        std::move(options), make);
  contract.first_tasks = [made = contract.make](
                             const void* bound, uint64_t seed,
                             size_t count) -> Result<std::vector<EnvironmentContract::SampleTask>> {
    ASSIGN_OR_RETURN(const auto environment, made(bound));
    return sample_tasks(*environment, seed, count);
  };
  return contract;
}

}  // namespace primerl
