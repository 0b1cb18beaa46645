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
  /// A finite number, usually in [0, 1]. `actions` are the decoded texts of all turns (>= 1),
  /// `given` is what the environment gave.
  virtual Result<double> score(const EnvironmentTask& task, const std::vector<std::string>& actions,
                               double given) = 0;
};

/// What the catalog says of a reward that `make` builds from its options; the error of `make` is
/// the one that refuses a graph.
template <class Options>
RewardContract reward_contract(std::string name, std::string doc, OptionSet options,
                               Result<std::unique_ptr<Reward>> (*make)(const Options& options)) {
  RewardContract contract;
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

}  // namespace primerl
