// The reports of a Trainer: the metrics of its steps, and the fault with which it ends.
#include <algorithm>
#include <utility>

#include "actors/trainer/trainer.h"
#include "kernels/train/loss.h"

namespace primerl {

void add_report_metrics(const TrainReport& report, ObjectiveRule rule, MetricValues& values) {
  values.emplace_back("loss/mean", report.loss);
  values.emplace_back("entropy/all/mean", report.entropy_mean);
  values.emplace_back("mismatch_kl/all/mean", report.mismatch_kl_mean);
  values.emplace_back("mismatch_kl/all/max", report.mismatch_kl_max);
  values.emplace_back("masked/all/mean", report.masked_fraction);
  if (rule != ObjectiveRule::kCrossEntropy)
    values.emplace_back("effective_size/all/mean", report.effective_size);
  double with_reason = 0;
  for (const MaskReason reason : reasons_of(rule)) {
    values.emplace_back(fmt::format("masked/{}/mean", to_string(reason)), share_of(report, reason));
    with_reason += share_of(report, reason);
  }
  const bool is_own = rule == ObjectiveRule::kOwn;
  if (is_own)
    values.emplace_back("masked/other/mean", std::max(report.masked_fraction - with_reason, 0.0));
  if (is_own || rule == ObjectiveRule::kWeightCap)
    values.emplace_back("capped/all/mean", report.capped_fraction);
  values.emplace_back("optim/grad_norm", report.grad_norm);
  values.emplace_back("optim/lr", report.learning_rate);
  add_measures(report.measures, values);
}

Error Trainer::Fault::error() const {
  Error error(static_cast<Code>(code), message);
  for (const auto& note : notes) (void)std::move(error).note(note);
  return error;
}

void Trainer::give_up(Error fault) {
  is_done_ = true;
  leave_queue();
  refuse_request(fault);
  if (checkpointed_ > 0)
    (void)std::move(fault).note(fmt::format("the newest checkpoint is of step {}", checkpointed_));
  fault_ = Fault{static_cast<uint8_t>(fault.code()), fault.message(), fault.notes(), false};
  services().log(LogLevel::kError, fault.text());
  services().stop_on_error();
}

void Trainer::publish_step_metrics() {
  if (!finished_step_) return;
  const FinishedStep taken = *std::exchange(finished_step_, std::nullopt);
  const Time ended = services().now();
  // The tenant's share of the last pass, by tokens. It is above 1 for a step of several passes.
  const double part = taken.num_pass_tokens == 0 ? 1
                                                 : static_cast<double>(taken.num_tokens) /
                                                       static_cast<double>(taken.num_pass_tokens);
  const double busy = part * (ended - taken.began).to_seconds();
  MetricValues all = taken.values;
  const auto add = [&all](std::string name, double value) {
    all.emplace_back(std::move(name), value);
  };
  add("perf/train_tokens_per_second", busy > 0 ? static_cast<double>(taken.num_tokens) / busy : 0);
  // Tokens that the trainer received; tokens dropped on the way do not count.
  const double elapsed = (ended - last_end_).to_seconds();
  add("perf/decode_tokens_per_second",
      elapsed > 0 ? static_cast<double>(num_sampled_tokens_) / elapsed : 0);
  add("time/step", elapsed);
  add("time/wait_for_batch", (taken.began - last_end_).to_seconds());
  add("time/learner", busy);
  add("progress/tokens", static_cast<double>(taken.num_tokens));
  add("progress/loss_tokens", static_cast<double>(taken.num_loss_tokens));
  add("progress/stale_tokens", static_cast<double>(wasted_.stale));
  add("progress/filtered_tokens", static_cast<double>(wasted_.filtered));
  add("progress/failed_tokens", static_cast<double>(wasted_.failed));
  const double flops = busy > 0 ? taken.flops / busy : 0;
  if (flops > 0) add("perf/model_tflops", flops * 1e-12);
  if (flops > 0 && taken.peak_flops > 0) add("perf/mfu", flops / taken.peak_flops);
  wasted_ = {};
  num_sampled_tokens_ = 0;
  last_end_ = ended;
  services().publish_metrics(tenant_, version_.value, all);
}

}  // namespace primerl
