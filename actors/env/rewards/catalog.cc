#include "actors/env/rewards/catalog.h"

#include "actors/env/rewards/exact.h"
#include "graph/base/suggest.h"

namespace primerl {

std::vector<RewardContract> reward_contracts() {
  return {
      reward_contract("exact", "1 for the task's answer in the last turn, letter by letter, else 0",
                      exact_options(), make_exact),
  };
}

Result<std::unique_ptr<Reward>> make_reward(const TenantReward& reward) {
  if (reward.name.empty()) return std::unique_ptr<Reward>();
  std::vector<std::string> names;
  const std::vector<RewardContract> known = reward_contracts();
  const RewardContract* contract = reward.contract;
  for (const RewardContract& each : known) {
    if (contract == nullptr && each.name == reward.name) contract = &each;
    names.push_back(each.name);
  }
  if (contract == nullptr)
    return error(Code::kNotFound, "unknown reward '{}'", reward.name)
        .note("rewards: " + join_names(names));
  auto made = contract->make(reward.options.get());
  if (made.ok()) return made;
  return std::move(made).error().while_doing("reward '" + reward.name + "'");
}

}  // namespace primerl
