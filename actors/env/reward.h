/// Reward: judges a finished trajectory in place of its environment.
///
/// Called by the Env actor alone, on that actor's own thread, once for each trajectory that its
/// environment has ended. Stateless, so that a replayed run gets equal rewards. A returned error
/// costs the rollout it was for, not the run.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/env/environment.h"

namespace primerl {

class Reward {
 public:
  virtual ~Reward() = default;
  /// Any finite number of at most kRewardMax (actors/trainer/batch.h) in size; another one fails
  /// the rollout. `actions` are the decoded texts of all
  /// turns (>= 1), as step() of Environment gets them; `given` is what the environment gave.
  virtual Result<double> score(const EnvironmentTask& task, const std::vector<std::string>& actions,
                               double given) = 0;
};

/// What the catalog says of a reward that `make` builds.
template <class Options>
RewardContract reward_contract(std::string name, std::string doc, OptionSet options,
                               Result<std::unique_ptr<Reward>> (*make)(const Options& options)) {
  return contract_made_by<RewardContract>(std::move(name), std::move(doc), std::move(options),
                                          make);
}

}  // namespace primerl
