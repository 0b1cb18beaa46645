/// The use of rollouts by a tenant's objective, and the filters of rollouts (`[tenant.x] filters`).
/// Pure functions.
#pragma once

#include <optional>
#include <string>

#include "actors/messages/rollout.h"
#include "graph/tenant.h"
#include "kernels/train/advantage.h"
#include "kernels/train/learner.h"
#include "kernels/train/objective.h"

namespace primerl {

/// The use of a tenant's rollouts by its objective.
struct RolloutUse {
  LossKind data = LossKind::kPolicy;
  ObjectiveRule rule = ObjectiveRule::kDppo;
  bool uses_advantages = true;
  AdvantageKind advantage = AdvantageKind::kMean;

  bool is_of_rollouts() const { return data == LossKind::kPolicy; }
  /// Whether a group's rewards decide alone what its rollouts train: then a group of one, or of
  /// equal rewards, trains nothing.
  bool compares_in_group() const { return uses_advantages && advantage != AdvantageKind::kBatch; }
};

/// Empty if no objective has the tenant's name.
std::optional<RolloutUse> use_of(const Tenant& tenant, const OwnObjectives& own);

/// A token counts as near-certain for `repetition_max` with a probability above this.
inline constexpr double kNearlyCertain = 0.99;
/// A token of an id from `gibberish_from` on is improbable with a log-probability more than this
/// below that of a token drawn evenly from the vocabulary.
inline constexpr double kBelowEven = 2;

/// Why a filter drops the rollout; empty if none does.
std::string fault_of_filters(const Trajectory& member, const Tenant& tenant, int32_t vocab_size);

}  // namespace primerl
