/// The rewards that a graph file may name: `[tenant.x] reward = { name = "exact" }`. To add one,
/// write one pair of files and one entry in catalog.cc.
#pragma once

#include <memory>
#include <vector>

#include "actors/env/reward.h"
#include "graph/catalog.h"
#include "graph/tenant.h"

namespace primerl {

/// Name, doc and options of every reward, for `check` and for the reference pages.
std::vector<RewardContract> reward_contracts();

/// Builds the reward that a tenant names; null when it names none.
Result<std::unique_ptr<Reward>> make_reward(const TenantReward& reward);

}  // namespace primerl
