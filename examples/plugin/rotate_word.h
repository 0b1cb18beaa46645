/// An environment: `r:abcd>` wants `bcda`. One turn; the reward is the share of right positions.
#pragma once

#include "actors/env/environment.h"

namespace word_games {

struct RotateWordOptions {
  int32_t length = 4;
};

primerl::EnvironmentContract rotate_word_contract();

}  // namespace word_games
