/// A routing policy: of two engines that the session's key names, the one with fewer requests.
#pragma once

#include "actors/router/policies/policy.h"

namespace word_games {

primerl::RoutePolicyContract two_choices_contract();

}  // namespace word_games
