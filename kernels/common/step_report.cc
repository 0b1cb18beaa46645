#include "kernels/common/step_report.h"

#include <algorithm>
#include <cmath>

#include "kernels/train/schedule.h"

namespace primerl {
namespace {

int64_t count_loss_tokens(const TrainBatch& batch) {
  int64_t count = 0;
  for (const auto& sample : batch.samples)
    for (size_t i = 1; i < sample.loss_mask.size(); ++i) count += sample.loss_mask[i] != 0;
  return count;
}

}  // namespace

Recompute recompute_of(std::string_view name) {
  if (name == "full") return Recompute::kFull;
  return name == "keep_attention" ? Recompute::kAttention : Recompute::kNone;
}

TrainReport begin_report(const TrainBatch& batch, const TrainingRules& rules, int64_t step) {
  TrainReport report;
  for (const auto& sample : batch.samples)
    report.num_tokens += static_cast<int64_t>(sample.tokens.size());
  report.num_loss_tokens = count_loss_tokens(batch);
  report.learning_rate = learning_rate(rules.schedule, rules.optimizer.lr, rules.max_steps, step);
  if (report.num_loss_tokens == 0) {
    report.skipped = true;
    report.skip_reason = "no token of the batch has a loss";
  }
  return report;
}

void add_means(const LossSums& sums, TrainReport& report) {
  const double per_token = 1.0 / static_cast<double>(report.num_loss_tokens);
  report.loss = sums.loss * per_token;
  report.entropy_mean = sums.entropy * per_token;
  report.mismatch_kl_mean = sums.mismatch_kl * per_token;
  report.mismatch_kl_max = sums.mismatch_kl_max;
  report.masked_fraction = static_cast<double>(sums.masked) * per_token;
  const auto share_of = [&](MaskReason reason) {
    return static_cast<double>(sums.masked_by[static_cast<size_t>(reason)]) * per_token;
  };
  report.masked_low = share_of(MaskReason::kLow);
  report.masked_high = share_of(MaskReason::kHigh);
  report.masked_dual = share_of(MaskReason::kDual);
  report.masked_weight = share_of(MaskReason::kWeight);
  report.masked_moment = share_of(MaskReason::kMoment);
  report.capped_fraction = static_cast<double>(sums.capped) * per_token;
  report.effective_size = sums.ratio * sums.ratio * per_token / sums.ratio_squared;
}

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

void add_token(const TrainTarget& target, const TokenLoss& token, double entropy, LossSums& sums) {
  sums.loss += token.loss;
  sums.entropy += entropy;
  sums.mismatch_kl += token.mismatch_kl;
  sums.mismatch_kl_max = std::max(sums.mismatch_kl_max, token.mismatch_kl);
  sums.masked += token.masked ? 1 : 0;
  sums.capped += token.capped ? 1 : 0;
  sums.masked_by[static_cast<size_t>(token.reason)] += token.masked ? 1 : 0;
  sums.ratio += token.ratio;
  sums.ratio_squared += token.ratio * token.ratio;
  sums.measures.add(target.position, target.distance, token.ratio, token.mismatch_kl);
}

}  // namespace primerl
