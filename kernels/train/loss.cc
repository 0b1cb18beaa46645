#include "kernels/train/loss.h"

#include <algorithm>
#include <cmath>

#include "kernels/train/learner.h"

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

namespace {

/// Adds the policy-gradient term -weight * A * value(log_pi), whose derivative by log_pi is -weight
/// * A * gradient.
void add_gain(const Objective& objective, double advantage, double value, double gradient,
              TokenLoss& token) {
  token.loss -= objective.advantage_weight * advantage * value;
  token.gradient -= objective.advantage_weight * advantage * gradient;
}

void drop(MaskReason reason, TokenLoss& token) {
  token.masked = true;
  token.reason = reason;
}

/// The square of the distance from the sampling policy.
void add_square(const Objective& objective, double d, TokenLoss& token) {
  token.loss += objective.kl_weight * d * d;
  token.gradient += 2 * objective.kl_weight * d;
}

/// k3 of the reference: e^k - k - 1, k = log_ref - log_pi.
void add_reference(const Objective& objective, const TokenFacts& facts, TokenLoss& token) {
  if (!(objective.reference_weight > 0)) return;
  const double k = facts.log_reference - facts.log_pi;
  const double clamped = std::clamp(k, -kLogRatioMax, kLogRatioMax);
  token.loss += objective.reference_weight * (std::exp(clamped) - clamped - 1);
  if (clamped == k) token.gradient += objective.reference_weight * (1 - std::exp(k));
}

/// A ratio of probabilities and its gradient by log_pi: 0 where the clamp of its logarithm limits
/// it.
struct Ratio {
  explicit Ratio(double log_ratio)
      : value(std::exp(std::clamp(log_ratio, -kLogRatioMax, kLogRatioMax))),
        gradient(std::abs(log_ratio) <= kLogRatioMax ? value : 0) {}
  double value;
  double gradient;
};

/// -min(ratio * A, clip(ratio) * A), times a constant.
void add_clipped(const Objective& objective, double advantage, const Ratio& ratio, double constant,
                 TokenLoss& token) {
  const double bound = advantage > 0 ? 1 + objective.clip_high : 1 - objective.clip_low;
  const bool is_clipped = advantage > 0   ? ratio.value > bound
                          : advantage < 0 ? ratio.value < bound
                                          : false;
  if (is_clipped) drop(advantage > 0 ? MaskReason::kHigh : MaskReason::kLow, token);
  double value = is_clipped ? bound : ratio.value;
  if (objective.clip_dual > 0 && advantage < 0 && value > objective.clip_dual) {
    value = objective.clip_dual;
    drop(MaskReason::kDual, token);
  }
  add_gain(objective, advantage, constant * value, token.masked ? 0 : constant * ratio.gradient,
           token);
}

/// The plugin's loss; ratio and mismatch are computed here, so that they mean the same everywhere.
TokenLoss own_loss(const Objective& objective, const TokenFacts& facts) {
  TokenLoss token = objective.own_loss(objective, facts);
  const double d = facts.log_pi - facts.log_mu;
  token.ratio = Ratio(d).value;
  token.mismatch_kl = token.ratio - 1 - std::clamp(d, -kLogRatioMax, kLogRatioMax);
  return token;
}

/// The clipped ratio to the proximal policy, times its weight against the sampling policy.
void add_decoupled(const Objective& objective, const TokenFacts& facts, TokenLoss& token) {
  const double log_proximal =
      std::isnan(facts.log_proximal)
          ? facts.log_mu + objective.proximal_share * (facts.log_pi - facts.log_mu)
          : facts.log_proximal;
  const double weight = Ratio(log_proximal - facts.log_mu).value;
  if (weight > objective.weight_high) return drop(MaskReason::kWeight, token);
  add_clipped(objective, facts.advantage, Ratio(facts.log_pi - log_proximal), weight, token);
}

/// Which side of the trust region of probabilities a token left.
MaskReason side_of(const Objective& objective, double moved, double advantage) {
  const bool is_above = moved > objective.clip_high, is_below = moved < -objective.clip_low;
  switch (objective.rule) {
    case ObjectiveRule::kDppo:
      if (advantage > 0) return is_above ? MaskReason::kHigh : MaskReason::kNone;
      return is_below ? MaskReason::kLow : MaskReason::kNone;
    case ObjectiveRule::kReferenceKl:
      return is_below ? MaskReason::kLow : MaskReason::kNone;
    default:
      if (is_above) return MaskReason::kHigh;
      return is_below ? MaskReason::kLow : MaskReason::kNone;
  }
}

/// The gain of a token within its trust region: of its advantage, or of the distance from the
/// reference.
void add_trusted(const Objective& objective, const TokenFacts& facts, const Ratio& ratio,
                 TokenLoss& token) {
  add_square(objective, facts.log_pi - facts.log_mu, token);
  const double moved = std::exp(facts.log_pi) - std::exp(facts.log_mu);
  const MaskReason reason = side_of(objective, moved, facts.advantage);
  if (reason != MaskReason::kNone) drop(reason, token);
  const double gain = objective.rule == ObjectiveRule::kReferenceKl
                          ? facts.log_reference - facts.log_pi
                          : facts.advantage;
  if (!token.masked) add_gain(objective, gain, ratio.value, ratio.gradient, token);
}

}  // namespace

std::string_view to_string(MaskReason reason) {
  constexpr std::string_view kNames[] = {"", "low", "high", "dual", "weight", "moment"};
  static_assert(std::size(kNames) == kMaskReasons);
  return kNames[static_cast<size_t>(reason)];
}

std::span<const MaskReason> reasons_of(ObjectiveRule rule) {
  using M = MaskReason;
  static constexpr M kSides[] = {M::kLow, M::kHigh}, kLow[] = {M::kLow};
  static constexpr M kEvery[] = {M::kLow, M::kHigh, M::kDual, M::kWeight, M::kMoment};
  static constexpr M kClips[] = {M::kLow, M::kHigh, M::kDual};
  static constexpr M kDecoupled[] = {M::kLow, M::kHigh, M::kWeight}, kMoment[] = {M::kMoment};
  switch (rule) {
    case ObjectiveRule::kDppo:
    case ObjectiveRule::kIpo:
    case ObjectiveRule::kWeightBand:
    case ObjectiveRule::kSequenceClip:
      return kSides;
    case ObjectiveRule::kRatioClip:
      return kClips;
    case ObjectiveRule::kDecoupled:
      return kDecoupled;
    case ObjectiveRule::kMoment:
      return kMoment;
    case ObjectiveRule::kReferenceKl:
      return kLow;
    case ObjectiveRule::kOwn:
      return kEvery;
    default:
      return {};
  }
}

double share_of(const TrainReport& report, MaskReason reason) {
  const double shares[] = {0,
                           report.masked_low,
                           report.masked_high,
                           report.masked_dual,
                           report.masked_weight,
                           report.masked_moment};
  static_assert(std::size(shares) == kMaskReasons);
  return shares[static_cast<size_t>(reason)];
}

TokenLoss token_loss(const Objective& objective, const TokenFacts& facts) {
  if (objective.rule == ObjectiveRule::kCrossEntropy) return cross_entropy_loss(facts.log_pi);
  if (objective.rule == ObjectiveRule::kOwn) return own_loss(objective, facts);
  if (objective.rule == ObjectiveRule::kTopK && std::isnan(facts.log_mu)) return {};
  const double d = facts.log_pi - facts.log_mu, advantage = facts.advantage;
  const Ratio ratio(d);
  TokenLoss token;
  token.ratio = ratio.value;
  token.mismatch_kl = ratio.value - 1 - std::clamp(d, -kLogRatioMax, kLogRatioMax);
  if (objective.rule == ObjectiveRule::kTopK) return token;
  switch (objective.rule) {
    case ObjectiveRule::kDppo:
    case ObjectiveRule::kIpo:
    case ObjectiveRule::kReferenceKl:
      add_trusted(objective, facts, ratio, token);
      break;
    case ObjectiveRule::kRatioClip:
      add_clipped(objective, advantage, ratio, 1, token);
      break;
    case ObjectiveRule::kSequenceClip:
      // The gradient of log s in the d of one token is 1 / length, which `weight` has.
      add_clipped(objective, advantage, Ratio(facts.sequence_log_ratio), 1, token);
      break;
    case ObjectiveRule::kWeightCap: {
      const double weight = std::clamp(ratio.value, objective.weight_low, objective.weight_high);
      token.capped = weight != ratio.value;
      if (token.capped) token.reason = weight < ratio.value ? MaskReason::kHigh : MaskReason::kLow;
      add_gain(objective, advantage, weight * facts.log_pi, weight, token);
      break;
    }
    case ObjectiveRule::kWeightBand:
      if (ratio.value > objective.weight_high) drop(MaskReason::kHigh, token);
      if (ratio.value < objective.weight_low) drop(MaskReason::kLow, token);
      if (!token.masked)
        add_gain(objective, advantage, ratio.value * facts.log_pi, ratio.value, token);
      break;
    case ObjectiveRule::kDecoupled:
      add_decoupled(objective, facts, token);
      break;
    case ObjectiveRule::kMoment:
      // A token that is not a number trains, so that its loss makes the learner skip the step: the
      // gradient of a dropped one is 0 on some devices whatever its logits.
      if (facts.is_dropped && !std::isnan(d)) drop(MaskReason::kMoment, token);
      if (!token.masked) add_gain(objective, advantage, ratio.value, ratio.gradient, token);
      break;
    case ObjectiveRule::kImportance:
      add_gain(objective, advantage, ratio.value, ratio.gradient, token);
      break;
    case ObjectiveRule::kRegularized:
      add_gain(objective, advantage, facts.log_pi, 1, token);
      add_square(objective, d, token);
      break;
    case ObjectiveRule::kDistillation:
      token.loss -= objective.reference_weight * (facts.log_reference - facts.log_mu) * ratio.value;
      token.gradient -=
          objective.reference_weight * (facts.log_reference - facts.log_mu) * ratio.gradient;
      return token;
    case ObjectiveRule::kTopK:
    case ObjectiveRule::kCrossEntropy:
    case ObjectiveRule::kOwn:
      break;
  }
  if (objective.rule != ObjectiveRule::kReferenceKl) add_reference(objective, facts, token);
  return token;
}

TokenLoss cross_entropy_loss(double log_pi) {
  TokenLoss token;
  token.loss = -log_pi;
  token.gradient = -1;
  return token;
}

}  // namespace primerl
