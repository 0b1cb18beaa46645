/// An objective: the policy gradient, weighed by a gate that falls softly as a token moves away
/// from the policy that sampled it (as SAPO does), instead of a clip.
#pragma once

#include "kernels/train/loss.h"

namespace word_games {

primerl::ObjectiveSpec soft_gate_objective();

}  // namespace word_games
