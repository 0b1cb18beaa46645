/// Reward: gives the reward of a finished trajectory instead of its environment.
///
/// Only the Env actor calls it, on that actor's own thread, once for each trajectory that its
/// environment has ended. Stateless, so a replayed run gets equal rewards. A returned error fails
/// its rollout, not the run.
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
  /// A finite number with an absolute value of at most kRewardMax (actors/trainer/batch.h); any
  /// other value fails the rollout. `actions` are the decoded texts of all turns (>= 1), the same
  /// as in Environment::step(). `given` is the environment's own reward.
  virtual Result<double> score(const EnvironmentTask& task, const std::vector<std::string>& actions,
                               double given) = 0;
};

/// The catalog entry of a reward that `make` builds.
template <class Options>
RewardContract reward_contract(std::string name, std::string doc, OptionSet options,
                               Result<std::unique_ptr<Reward>> (*make)(const Options& options)) {
  return contract_made_by<RewardContract>(std::move(name), std::move(doc), std::move(options),
                                          make);
}

}  // namespace primerl
