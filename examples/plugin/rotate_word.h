/// An environment: the answer to `r:abcd>` is `bcda`. One turn; the reward is the share of right
/// positions.
#pragma once

#include "actors/env/environment.h"

namespace word_games {

struct RotateWordOptions {
  int32_t length = 4;
};

primerl::EnvironmentContract rotate_word_contract();

}  // namespace word_games
