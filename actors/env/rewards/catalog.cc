#include "actors/env/rewards/catalog.h"

#include "actors/env/python/workers.h"
#include "actors/env/rewards/contains.h"
#include "actors/env/rewards/exact.h"
#include "actors/env/rewards/json_schema.h"
#include "actors/env/rewards/judge.h"
#include "actors/env/rewards/length.h"
#include "actors/env/rewards/number.h"
#include "actors/env/rewards/regex.h"
#include "graph/base/suggest.h"

namespace primerl {

std::vector<RewardContract> reward_contracts() {
  return {
      reward_contract("exact", "1 for the task's answer in the last turn, letter by letter, else 0",
                      exact_options(), make_exact),
      reward_contract("contains", "1 if the last turn contains the task's answer, else 0",
                      contains_options(), make_contains),
      reward_contract("regex", "1 if a regular expression matches the last turn, else 0",
                      regex_options(), make_regex),
      reward_contract("number",
                      "1 if the last number of the last turn is that of the task's answer, else 0",
                      number_options(), make_number),
      reward_contract("json_schema", "1 if the last turn is JSON that fits a schema, else 0",
                      json_schema_options(), make_json_schema),
      reward_contract("length", "1 for a short last turn, falling to 0 for a long one",
                      length_options(), make_length),
      python_reward(),
      math_reward(),
      judge_reward(),
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
