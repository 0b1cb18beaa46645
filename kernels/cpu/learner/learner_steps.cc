// The steps of CpuLearner: of one tenant, or of several that share passes over the model.
#include <algorithm>
#include <cstdio>

#include "kernels/common/boundary.h"
#include "kernels/common/finite.h"
#include "kernels/common/step_report.h"
#include "kernels/cpu/learner/learner.h"

namespace primerl {

void CpuLearner::look(const std::string& name, const at::Tensor& rows) {
  if (options_.debug.check_finite && debug_fault_.empty())
    if (const std::string where = first_not_finite(rows); !where.empty())
      debug_fault_ =
          fmt::format("activation '{}' is {} of micro-batch {}", name, where, micro_batch_);
  if (!options_.debug.dump_folder.empty())
    dump_.add(fmt::format("micro_batch.{}.{}", micro_batch_, name), rows);
}

/// Training must not depend on whether a debug file can be written.
void CpuLearner::keep_batch(const TrainBatch& batch, int64_t step) {
  const Status kept = kept_batches_.keep(step, batch);
  if (kept.ok() || std::exchange(has_warned_, true)) return;
  fmt::print(stderr, "warning: the batch of step {} is not kept (logged once): {}\n", step,
             kept.error().text());
}

Status CpuLearner::dump(const Trained& trained) {
  auto all = trained.tensors.copy_gradients();
  std::reverse(all.begin(), all.end());
  dump_.add("gradient", all);
  dump_.add("weight", trained.tensors.view_weights());
  return dump_.write(options_.debug.dump_folder);
}

Result<TrainReport> CpuLearner::step(const TrainBatch& batch, const StopRequested& stop_requested) {
  return steps_.step(batch, stop_requested);
}

std::vector<Result<TrainReport>> CpuLearner::step_together(
    std::span<const TrainBatch* const> batches, const StopRequested& stop_requested) {
  return shares_passes() ? steps_.step_together(batches, stop_requested)
                         : Learner::step_together(batches, stop_requested);
}

std::vector<std::optional<Result<TrainReport>>> CpuLearner::pass_together(
    std::span<const std::shared_ptr<const TrainBatch>> batches,
    const StopRequested& stop_requested) {
  return shares_passes() ? steps_.pass_together(batches, stop_requested)
                         : Learner::pass_together(batches, stop_requested);
}

int64_t CpuLearner::next_tokens(const TrainBatch& batch) const {
  const int64_t num_tokens = Learner::next_tokens(batch);
  if (!shares_passes()) return num_tokens;
  if (num_tokens <= micro_batch_tokens() || steps_.has_more_passes(batch))
    return steps_.next_tokens(batch, num_tokens);
  // A refused batch also uses a work call.
  if (!check_samples(batch, limits()).ok()) return 1;
  const auto micro_batches = micro_batches_of(batch);
  return micro_batches.empty() ? 1 : micro_batches.front().rows.num_rows();
}

/// libtorch's GEMM of more rows may have other bits, and the debug options observe the passes of
/// one step.
bool CpuLearner::shares_passes() const {
  return trained_.front().adapter != nullptr &&
         numerics_of(options_.numerics) == Numerics::kInvariant && !options_.debug.check_finite &&
         options_.debug.dump_folder.empty();
}

/// A tenant's micro-batches do not depend on other tenants in the passes or on debug options: they
/// define the order in which its gradient is added.
std::vector<MicroBatch> CpuLearner::micro_batches_of(const TrainBatch& batch) const {
  return pack(batch.samples, options_.micro_batch_tokens, micro_batch_tokens());
}

int32_t CpuLearner::micro_batch_tokens() const {
  const bool may_share =
      trained_.front().adapter != nullptr && numerics_of(options_.numerics) == Numerics::kInvariant;
  return may_share ? std::min(options_.micro_batch_tokens, options_.adapter_batch_tokens)
                   : options_.micro_batch_tokens;
}

Result<StepInProgress> CpuLearner::begin_step(const TrainBatch& batch) {
  return at_boundary("training step", [&]() -> Result<StepInProgress> {
    ASSIGN_OR_RETURN(Trained* const trained, trained_of(batch.tenant));
    RETURN_IF_ERROR(check_samples(batch, limits()));
    if (!options_.debug.batch_folder.empty()) keep_batch(batch, trained->tensors.num_steps() + 1);
    debug_fault_.clear();
    dump_ = {};
    // An older dump must not be mistaken for that of a failed step.
    if (!options_.debug.dump_folder.empty())
      RETURN_IF_ERROR(StepDump::remove(options_.debug.dump_folder));
    micro_batch_ = 0;
    return begun_step(batch, *trained);
  });
}

StepInProgress CpuLearner::begun_step(const TrainBatch& batch, Trained& trained) {
  const int64_t number = trained.tensors.num_steps() + 1;
  StepInProgress step;
  step.batch = &batch;
  step.trained = static_cast<size_t>(&trained - trained_.data());
  step.adapter = slot_of(trained);
  step.loss = &trained.rules.loss;
  step.report = begin_report(batch, trained.rules, number);
  if (step.report.skipped) return step;
  step.micro_batches = micro_batches_of(batch);
  if (trained.adapter != nullptr)
    trained.dropout = dropout_of(trained.adapter->table().config(), number);
  trained.tensors.clear_gradients();
  return step;
}

Status CpuLearner::run_pass(const MicroBatch& pass, std::span<const LearnedPart> parts) {
  return at_boundary("training step", [&]() -> Status {
    // Set each time: score() between two passes of a step uses none.
    for (const Trained& trained : trained_) use_adapter(trained, trained.dropout);
    const float* normed = pass_.forward(pass.rows);
    dnormed_.assign(static_cast<size_t>(pass.rows.num_rows() * model_.config.hidden_size), 0.0F);
    head_.learn(pass.targets, parts, normed, dnormed_.data());
    pass_.backward(pass.rows, dnormed_.data());
    ++micro_batch_;
    return ok();
  });
}

Result<TrainReport> CpuLearner::end_step(StepInProgress& step) {
  return at_boundary("training step", [&] { return ended_step(step); });
}

Result<TrainReport> CpuLearner::ended_step(const StepInProgress& step) {
  TrainReport report = step.report;
  Trained& trained = trained_[step.trained];
  report.num_micro_batches = static_cast<int32_t>(step.next);
  if (!debug_fault_.empty()) {
    report.skipped = true;
    report.skip_reason = fmt::format("{} (step {})", debug_fault_, trained.tensors.num_steps() + 1);
    if (!options_.debug.dump_folder.empty())
      RETURN_IF_ERROR(dump_.write(options_.debug.dump_folder));
    return report;
  }
  add_means(step.sums, report);
  trained.tensors.update(trained.rules.optimizer, report);
  if (!options_.debug.dump_folder.empty()) RETURN_IF_ERROR(dump(trained));
  return report;
}

}  // namespace primerl
