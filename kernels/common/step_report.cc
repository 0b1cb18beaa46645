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
  report.measures.teacher_kl = sums.teacher_kl * per_token;
  report.measures.teacher_mass = sums.teacher_mass * per_token;
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

}  // namespace primerl
