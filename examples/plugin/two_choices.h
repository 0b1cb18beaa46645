/// A routing policy: the session's key selects two engines; the one with fewer requests is used.
#pragma once

#include "actors/router/policies/policy.h"

namespace word_games {

primerl::RoutePolicyContract two_choices_contract();

}  // namespace word_games
