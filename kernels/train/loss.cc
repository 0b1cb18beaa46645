#include "kernels/train/loss.h"

#include <algorithm>
#include <cmath>

namespace primerl {

double log_prob(std::span<const float> logits, double inverse_temperature,
                std::span<const int32_t> kept, int32_t token, std::span<double> gradient) {
  const size_t count = kept.empty() ? logits.size() : kept.size();
  const auto id = [&](size_t i) { return kept.empty() ? i : static_cast<size_t>(kept[i]); };
  const auto scaled = [&](size_t i) {
    return static_cast<double>(logits[id(i)]) * inverse_temperature;
  };
  double largest = scaled(0), sum = 0;
  for (size_t i = 1; i < count; ++i) largest = std::max(largest, scaled(i));
  for (size_t i = 0; i < count; ++i) sum += std::exp(scaled(i) - largest);
  const double log_normalizer = largest + std::log(sum);
  std::fill(gradient.begin(), gradient.end(), 0.0);
  for (size_t i = 0; i < count && !gradient.empty(); ++i)
    gradient[id(i)] = -inverse_temperature * std::exp(scaled(i) - log_normalizer);
  const auto label = static_cast<size_t>(token);
  if (!gradient.empty()) gradient[label] += inverse_temperature;
  return static_cast<double>(logits[label]) * inverse_temperature - log_normalizer;
}

TokenLoss dppo_loss(double log_pi, double log_mu, double advantage, const LossOptions& options) {
  const double d = log_pi - log_mu;
  const double clamped = std::clamp(d, -kLogRatioMax, kLogRatioMax);
  const double ratio = std::exp(clamped);
  const double moved = std::exp(log_pi) - std::exp(log_mu);
  TokenLoss token;
  token.masked = advantage > 0 ? moved > options.clip_high : moved < -options.clip_low;
  token.mismatch_kl = ratio - 1 - clamped;
  token.loss = options.kl_weight * d * d;
  token.gradient = 2 * options.kl_weight * d;
  if (token.masked) return token;
  token.loss -= options.advantage_weight * advantage * ratio;
  if (clamped == d) token.gradient -= options.advantage_weight * advantage * ratio;
  return token;
}

TokenLoss cross_entropy_loss(double log_pi) {
  return {.loss = -log_pi, .gradient = -1, .mismatch_kl = 0, .masked = false};
}

Status validate(const LossOptions& options) {
  if (options.kind != "dppo" && options.kind != "cross_entropy")
    return error(Code::kInvalid, "unknown loss '{}'", options.kind)
        .note("known losses: dppo, cross_entropy");
  const auto bad = [](double value) { return !std::isfinite(value) || value < 0; };
  if (bad(options.clip_low) || bad(options.clip_high) || bad(options.advantage_weight) ||
      bad(options.kl_weight))
    return error(
        Code::kInvalid,
        "clip_low {}, clip_high {}, advantage_weight {} and kl_weight {} must be 0 or above",
        options.clip_low, options.clip_high, options.advantage_weight, options.kl_weight);
  return ok();
}

}  // namespace primerl
