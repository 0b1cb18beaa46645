/// The losses, one token at a time: the reference that the vectorised learner calls and tests
/// compare with.
///
/// Pure functions in double. For a sampled token: log_pi is the learner's log-probability now
/// (log_prob: of the distribution that was sampled from, temperature and kept set included), log_mu
/// the engine's at sampling, d = log_pi - log_mu, r = e^d, p = pi - mu, A the advantage.
///
///   dppo:           -keep * w_A * A * r  +  w_KL * d^2
///                   keep = not (A > 0 and p > clip_high) and not (A <= 0 and p < -clip_low)
///   cross_entropy:  -log_pi
///
/// r is not detached. The square covers kept and dropped tokens alike. The step divides the sum by
/// the count of its loss tokens.
#pragma once

#include <cstdint>
#include <span>

#include "graph/base/result.h"
#include "kernels/train/options.h"

namespace primerl {

struct TokenLoss {
  double loss = 0;
  double gradient = 0;     // d loss / d log_pi
  double mismatch_kl = 0;  // k3: r - 1 - d
  bool masked = false;     // the trust region dropped the policy-gradient term
};

/// Sums over the loss tokens of a step.
struct LossSums {
  double loss = 0;
  double entropy = 0;
  double mismatch_kl = 0;
  double mismatch_kl_max = 0;
  int64_t masked = 0;
};

/// In r and k3, d is clamped to this, so that one bad token cannot make a step overflow.
inline constexpr double kLogRatioMax = 20;

/// Log-probability of `token` under softmax(logits * inverse_temperature) over the ids of `kept`,
/// which are rising and contain it; over all logits if `kept` is empty. `gradient`, unless it is
/// empty, receives d log_prob / d logits: 0 outside of `kept`, which is constant.
double log_prob(std::span<const float> logits, double inverse_temperature,
                std::span<const int32_t> kept, int32_t token, std::span<double> gradient = {});

TokenLoss dppo_loss(double log_pi, double log_mu, double advantage, const LossOptions& options);
TokenLoss cross_entropy_loss(double log_pi);

/// Refuses unknown kinds and negative or non-finite numbers.
Status validate(const LossOptions& options);

}  // namespace primerl
