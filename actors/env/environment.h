/// Environment: gives tasks and judges the policy's answers.
///
/// Only the Env actor calls it, one call at a time, on that actor's own thread; each replica of the
/// node has its own Environment. A task follows from (seed, ordinal), and a step follows from the
/// task and all actions so far, so a restarted or replayed run sees the same world. State that is
/// costly to make again (a sandbox, a game) is kept in a World between turns. If a world is lost, a
/// new one repeats the earlier actions. A returned error fails its rollout, not the run. Texts are
/// UTF-8 and are tokenised unchanged.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/random.h"
#include "graph/base/result.h"
#include "graph/catalog.h"
#include "kernels/text/chat/message.h"

namespace primerl {

/// One task: what the policy reads first, and the answer that the judge knows.
struct EnvironmentTask {
  std::string prompt;
  std::string answer;  // the environment's own; never shown to the policy
  std::string row =
      {};  // the row of a data set as a JSON object, for rewards; empty: there is none
  std::vector<ChatMessage> messages = {};  // with a chat template they replace `prompt`
  std::string tools = {};                  // JSON array of the tools that the policy may call
  /// For a server that drives rollouts: a JSON object that it reads, and whether it plays all
  /// rollouts of a group at once.
  std::string data = {};
  bool scores_groups = false;
};

/// The result of the last action: either more text to read, or the end with its reward.
struct EnvironmentStep {
  std::string text;   // appended to the trajectory; empty when done
  double reward = 0;  // any finite number, see reward.h; counts only when done
  bool done = false;
  std::vector<ChatMessage> messages = {};  // with a chat template they replace `text`
};

/// The state of one trajectory between its turns. It is destroyed when the trajectory has ended, or
/// when the Env actor has more than `worlds_max` worlds.
class World {
 public:
  virtual ~World() = default;
  /// Judges the decoded text of the next turn. The text is the same as in Environment::step().
  virtual Result<EnvironmentStep> step(const std::string& action) = 0;
};

class Environment {
 public:
  virtual ~Environment() = default;
  /// The task with number `ordinal`. Random numbers come only from `random`, which is keyed by run
  /// seed, tenant and ordinal.
  virtual Result<EnvironmentTask> task(uint64_t ordinal, RandomStream random) = 0;
  /// The task with which `row` of an evaluation begins. By default it is made like a training task,
  /// from random numbers of its own; an environment with rows gives those that do not train.
  virtual Result<EnvironmentTask> evaluation_task(uint64_t row, RandomStream random) {
    return task(row, random);
  }
  /// The row of the task with number `ordinal`, from 0, for an environment whose contract counts
  /// its rows (EnvironmentContract::rows); otherwise the number of a task is its row.
  virtual uint64_t row_of(uint64_t ordinal) const { return ordinal; }
  /// The number that a row has in this field.
  virtual Result<double> number_of_row(uint64_t row, const std::string& field) const {
    return error(Code::kInvalid, "row {} has no field '{}'", row, field);
  }
  /// Judges `actions`: the decoded text of every turn of one trajectory so far (>= 1), without
  /// special tokens. The stop text that ended a turn is left out, unless the tenant sets
  /// `sampling.include_stop`.
  virtual Result<EnvironmentStep> step(const EnvironmentTask& task,
                                       const std::vector<std::string>& actions) = 0;
  /// A world for one trajectory of `task`, for environments that keep state between turns. The
  /// Environment must stay valid while the world exists. The default world calls step() with all
  /// actions so far.
  virtual Result<std::unique_ptr<World>> begin(const EnvironmentTask& task);
  /// The actions of a perfect policy in `task`, turn by turn; supervised examples are made from it.
  /// Its last action, and none before it, must end the trajectory. Empty when the environment has
  /// no demonstration. The default is the answer in one turn.
  virtual std::vector<std::string> demonstration(const EnvironmentTask& task) const {
    if (task.answer.empty()) return {};
    return {task.answer};
  }
};

/// The first `count` tasks, for `check`.
Result<std::vector<EnvironmentContract::SampleTask>> sample_tasks(Environment& environment,
                                                                  uint64_t seed, size_t count);

/// Fills in the fields that EnvironmentContract and RewardContract share. `make` builds the object
/// from its options; if it returns an error, `check` refuses the graph with that error.
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

/// The catalog entry of an environment that `make` builds.
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
