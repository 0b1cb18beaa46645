/// A reward: the environment's reward, reduced by a share of it for every letter above a free
/// number.
#pragma once

#include "actors/env/reward.h"

namespace word_games {

struct BrevityOptions {
  int32_t letters_free = 8;
  double price = 0.1;
};

primerl::RewardContract brevity_contract();

}  // namespace word_games
