/// The losses, one token at a time: the specification of every objective, which the learners of all
/// devices call and tests compare with.
///
/// Pure functions in double. For a sampled token: log_pi is the learner's log-probability now
/// (log_prob: of the distribution that was sampled from, temperature and kept set included), log_mu
/// the engine's at sampling, log_ref the reference model's; d = log_pi - log_mu, r = e^d,
/// p = pi - mu, A the advantage, [x] a value without gradient. With w_A = advantage_weight:
///
///   dppo            -keep * w_A * A * r  +  w_KL * d^2
///                   keep = not (A > 0 and p > clip_high) and not (A <= 0 and p < -clip_low)
///   ipo             the same, keep = -clip_low <= p <= clip_high
///   ratio clip      -w_A * min(r * A, clip(r) * A), clip(x) = x within [1 - low, 1 + high];
///                   with clip_dual c > 0 and A < 0 at most c * |A|
///   sequence clip   the same with s in place of r, log s = mean of d over the sequence
///   weight cap      -w_A * [clip(r, weight_low, weight_high)] * A * log_pi
///   weight band     -w_A * [r] * A * log_pi, dropped outside of [weight_low, weight_high]
///   decoupled       -w_A * [w] * min(u * A, clip(u) * A), w = e^(log_prox - log_mu), dropped above
///                   weight_high; u = e^(log_pi - log_prox)
///   moment          -w_A * r * A, dropped where the step's plan says so (step_targets.h)
///   reference KL    -keep * w_A * [log_ref - log_pi] * r + w_KL * d^2, keep = p >= -clip_low
///   importance      -w_A * r * A
///   regularized     -w_A * A * log_pi  +  w_KL * d^2
///   distillation    -w_ref * (log_ref - log_mu) * r
///   cross-entropy   -log_pi
///   top-k           of a whole distribution: top_k.h has it; here the ratio alone
///
/// All but reference KL, cross-entropy and the two distillations add w_ref * (e^k - k - 1), k =
/// log_ref - log_pi. Values in brackets are constants of the gradient. Squares and reference terms
/// cover kept and dropped tokens alike. The step adds weight * loss of each token and divides by
/// the count of its loss tokens.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "kernels/train/objective.h"
#include "kernels/train/step_measures.h"

namespace primerl {

struct TrainReport;  // learner.h

/// Why the policy-gradient term of a token was dropped or its weight limited.
enum class MaskReason : uint8_t { kNone, kLow, kHigh, kDual, kWeight, kMoment };
inline constexpr size_t kMaskReasons = 6;

/// "low", "high", "dual", "weight", "moment"; empty for kNone.
std::string_view to_string(MaskReason reason);
/// The reasons for which the rule can drop a token.
std::span<const MaskReason> reasons_of(ObjectiveRule rule);
/// The share of the step's tokens that were dropped for the reason.
double share_of(const TrainReport& report, MaskReason reason);

/// The inputs of the loss of one token.
struct TokenFacts {
  double log_pi = 0;
  double log_mu = 0;  // top-k: NaN if it is not known
  double advantage = 0;
  /// Stored log-probability of a proximal policy; NaN: proximal_share decides.
  double log_proximal = std::numeric_limits<double>::quiet_NaN();
  double log_reference = 0;
  double sequence_log_ratio = 0;  // mean of d over its sequence
  bool is_dropped = false;        // by the step's plan
};

struct TokenLoss {
  double loss = 0;
  double gradient = 0;      // d loss / d log_pi
  double mismatch_kl = 0;   // k3: r - 1 - d
  double ratio = 1;         // r
  double teacher_kl = 0;    // top-k: the forward KL to the teacher
  double teacher_mass = 0;  // top-k: the probability that the teacher gives to these tokens
  bool masked = false;      // the policy-gradient term was dropped
  bool capped = false;      // its weight was limited; it trains
  MaskReason reason = MaskReason::kNone;  // only a plugin's loss drops a token without one
};

/// Sums over the loss tokens of a step.
struct LossSums {
  double loss = 0;
  double entropy = 0;
  double mismatch_kl = 0;
  double mismatch_kl_max = 0;
  double teacher_kl = 0, teacher_mass = 0;
  int64_t masked = 0;
  int64_t capped = 0;
  std::array<int64_t, kMaskReasons> masked_by = {};  // by reason
  double ratio = 0, ratio_squared = 0;               // for the effective sample size
  MeasureSums measures;
};

/// In r and k3, d is clamped to this, so that one bad token cannot make a step overflow.
inline constexpr double kLogRatioMax = 20;

/// Log-probability of `token` under softmax(logits * inverse_temperature) over the ids of `kept`,
/// which are rising and contain it; over all logits if `kept` is empty. `gradient`, unless it is
/// empty, receives d log_prob / d logits: 0 outside of `kept`, which is constant.
double log_prob(std::span<const float> logits, double inverse_temperature,
                std::span<const int32_t> kept, int32_t token, std::span<double> gradient = {});

TokenLoss token_loss(const Objective& objective, const TokenFacts& token);
TokenLoss cross_entropy_loss(double log_pi);

}  // namespace primerl
