// The halves of a step that clients ask a LearnerCore for (docs/design/client-steps.md).
#include <utility>

#include "kernels/common/flops.h"
#include "kernels/common/learner_core.h"
#include "kernels/common/step_report.h"

namespace primerl {

Result<size_t> LearnerCore::check_client(const LossBatch& batch) const {
  ASSIGN_OR_RETURN(const size_t slot, slot_of(batch.tenant));
  if (steps_.has_unfinished(batch.tenant))
    return error(Code::kInvalid, "an accumulate while the tenant has an unfinished step");
  if (!open_.is_running(slot, batch)) RETURN_IF_ERROR(check_loss_batch(batch, limits()));
  return slot;
}

Result<LossResult> LearnerCore::accumulate(const LossBatch& batch,
                                           const StopRequested& stop_requested) {
  ASSIGN_OR_RETURN(const size_t slot, check_client(batch));
  const SignsOfLife signs(*this, stop_requested);
  return open_.accumulate(slot, batch, stop_requested);
}

std::optional<Result<LossResult>> LearnerCore::accumulate_pass(
    const std::shared_ptr<const LossBatch>& batch, const StopRequested& stop_requested) {
  const auto slot = check_client(*batch);
  if (!slot.ok()) return slot.error();
  const SignsOfLife signs(*this, stop_requested);
  return open_.accumulate_pass(*slot, batch, stop_requested);
}

/// A refused batch also uses a work call.
int64_t LearnerCore::next_rows(const LossBatch& batch) const {
  const auto slot = check_client(batch);
  return slot.ok() ? open_.next_rows(*slot, batch) : 1;
}

int32_t LearnerCore::rows_wanted() const {
  return backend_->adapter_batch_tokens().value_or(options_.micro_batch_tokens);
}

Result<AccumulateRunner::Division> LearnerCore::divide(size_t slot, const LossBatch& batch,
                                                       uint64_t first_draws, bool clears) {
  Division division;
  RETURN_IF_ERROR(backend_->run("accumulating gradients", 0, [&]() -> Status {
    division.micro_batches = pack(batch.data, rows_wanted(), first_draws);
    division.flops =
        training_flops(backend_->model().config, division.micro_batches, has_adapters());
    if (!clears) return ok();
    const AdapterTable* const adapter = backend_->adapter(slot);
    return backend_->begin(
        slot, adapter == nullptr ? AdapterDropout()
                                 : dropout_of(adapter->config(), backend_->num_steps(slot) + 1));
  }));
  return division;
}

Status LearnerCore::learn_part(size_t slot, const MicroBatch& batch, const LearnedPart& part) {
  MicroBatch pass;
  pass.append(batch, adapter_of(slot));
  debug_fault_.clear();
  is_dumped_ = false;
  const Status ran = run_pass(pass, {&part, 1});
  is_dumped_ = true;
  RETURN_IF_ERROR(ran);
  if (!has_debug_fault()) return ok();
  return error(Code::kInvalid, "{}", std::exchange(debug_fault_, std::string()));
}

Status LearnerCore::score_part(size_t slot, const MicroBatch& batch, const LearnedPart& part) {
  MicroBatch pass;
  pass.append(batch, adapter_of(slot));
  is_measuring_ = true;
  const Status scored = backend_->run("a forward pass", pass.rows.num_rows(), [&]() -> Status {
    ASSIGN_OR_RETURN(const auto logprobs, backend_->score(slot, pass));
    for (size_t i = 0; i < logprobs.size(); ++i) {
      const TrainTarget& target = pass.targets[i];
      add_token(target, target_loss(target, logprobs[i], part), logprobs[i], 0, part);
    }
    return ok();
  });
  is_measuring_ = false;
  return scored;
}

Result<TrainReport> LearnerCore::apply(TenantSlot tenant, const AdamNumbers& adam) {
  ASSIGN_OR_RETURN(const size_t slot, slot_of(tenant));
  RETURN_IF_ERROR(check_adam(adam, trained_[slot].rules.optimizer));
  ASSIGN_OR_RETURN(TrainReport report, open_.report(slot));
  report.learning_rate = adam.lr;
  report.measures.peak_flops =
      options_.peak_tflops > 0 ? options_.peak_tflops * 1e12 : backend_->peak_flops();
  RETURN_IF_ERROR(
      backend_->run("training step", 0, [&] { return update_weights(slot, &adam, report); }));
  open_.close(slot);
  return report;
}

void LearnerCore::discard(TenantSlot tenant) {
  steps_.discard(tenant);
  if (const auto slot = slot_of(tenant); slot.ok()) open_.close(*slot);
}

bool LearnerCore::has_open_gradients(TenantSlot tenant) const {
  const auto slot = slot_of(tenant);
  return slot.ok() && open_.has_open(*slot);
}

}  // namespace primerl
