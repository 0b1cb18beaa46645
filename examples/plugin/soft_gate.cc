#include "soft_gate.h"

#include <algorithm>
#include <cmath>

namespace word_games {
namespace {

/// -A * (4 / t) * sigmoid(t * (r - 1)), whose derivative in r is A at r = 1. The temperature t is
/// clip_high for good tokens and clip_low for bad ones.
primerl::TokenLoss loss(const primerl::Objective& objective, const primerl::TokenFacts& token) {
  const double d =
      std::clamp(token.log_pi - token.log_mu, -primerl::kLogRatioMax, primerl::kLogRatioMax);
  const double ratio = std::exp(d);
  const double temperature = token.advantage > 0 ? objective.clip_high : objective.clip_low;
  const double gate = 1 / (1 + std::exp(-temperature * (ratio - 1)));
  primerl::TokenLoss made;
  made.loss = -token.advantage * 4 / temperature * gate;
  made.gradient = -token.advantage * 4 * gate * (1 - gate) * ratio;
  return made;
}

}  // namespace

primerl::ObjectiveSpec soft_gate_objective() {
  using L = primerl::LossOptions;
  return {.name = "soft_gate",
          .rule = primerl::ObjectiveRule::kOwn,
          .doc = "a soft gate on the ratio instead of a clip",
          .numbers = {{&L::clip_low, "clip_low", 1.05}, {&L::clip_high, "clip_high", 1.0}},
          .mean = primerl::LossMean::kSequence,
          .advantage = "z_score",
          .own_loss = loss};
}

}  // namespace word_games
