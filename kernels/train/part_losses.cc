#include "kernels/train/part_losses.h"

#include <algorithm>

namespace primerl {
namespace {

void add_to_result(const TrainTarget& target, const TokenLoss& token, float log_pi, double entropy,
                   bool is_policy, LossResult& result) {
  result.logprobs[static_cast<size_t>(target.sample)][static_cast<size_t>(target.position)] =
      log_pi;
  LossTotals& totals = result.totals;
  totals.loss += token.loss;
  ++totals.num_targets;
  if (target.weight == 0 || (is_policy && target.advantage == 0)) return;
  totals.entropy += entropy;
  totals.mismatch_kl += token.mismatch_kl;
  ++totals.num_trained;
  totals.num_masked += token.masked ? 1 : 0;
  totals.num_capped += token.capped ? 1 : 0;
}

}  // namespace

TokenLoss target_loss(const TrainTarget& target, double log_pi, const LearnedPart& part) {
  TokenLoss token =
      part.loss == LossKind::kCrossEntropy
          ? cross_entropy_loss(log_pi)
          : token_loss(*part.objective, {.log_pi = log_pi,
                                         .log_mu = target.logprob,
                                         .advantage = target.advantage,
                                         .log_proximal = target.proximal,
                                         .log_reference = target.reference,
                                         .sequence_log_ratio = target.sequence_log_ratio,
                                         .is_dropped = target.is_dropped});
  token.loss *= target.weight;
  token.gradient *= target.weight;
  return token;
}

void add_token(const TrainTarget& target, const TokenLoss& token, float log_pi, double entropy,
               const LearnedPart& part) {
  if (part.result != nullptr) {
    const bool is_policy = part.objective->rule != ObjectiveRule::kCrossEntropy;
    return add_to_result(target, token, log_pi, entropy, is_policy, *part.result);
  }
  LossSums& sums = *part.sums;
  sums.loss += token.loss;
  sums.entropy += entropy;
  sums.mismatch_kl += token.mismatch_kl;
  sums.mismatch_kl_max = std::max(sums.mismatch_kl_max, token.mismatch_kl);
  sums.teacher_kl += token.teacher_kl;
  sums.teacher_mass += token.teacher_mass;
  sums.masked += token.masked ? 1 : 0;
  sums.capped += token.capped ? 1 : 0;
  sums.masked_by[static_cast<size_t>(token.reason)] += token.masked ? 1 : 0;
  sums.ratio += token.ratio;
  sums.ratio_squared += token.ratio * token.ratio;
  sums.measures.add(target.position, target.distance, token.ratio, token.mismatch_kl);
}

}  // namespace primerl
