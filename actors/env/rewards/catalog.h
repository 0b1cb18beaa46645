/// The rewards a graph file may name: `[tenant.x] reward = { name = "exact" }`.
/// A new one is one pair of files and one entry in catalog.cc.
#pragma once

#include <memory>
#include <vector>

#include "actors/env/reward.h"
#include "graph/catalog.h"
#include "graph/tenant.h"

namespace primerl {

/// Name, doc and options of every reward, for the checker and the reference.
std::vector<RewardContract> reward_contracts();

/// Builds what a tenant asks for; null when it names no reward.
Result<std::unique_ptr<Reward>> make_reward(const TenantReward& reward);

}  // namespace primerl
