#include "kernels/train/tenant_steps.h"

#include <algorithm>
#include <utility>

namespace primerl {

Result<TrainReport> TenantSteps::step(const TrainBatch& batch,
                                      const StopRequested& stop_requested) {
  const TrainBatch* const one = &batch;
  return std::move(step_together({&one, 1}, stop_requested).front());
}

std::vector<Result<TrainReport>> TenantSteps::step_together(
    std::span<const TrainBatch* const> batches, const StopRequested& stop_requested) {
  std::vector<Result<TrainReport>> reports;
  std::vector<StepInProgress> steps;
  for (const TrainBatch* batch : batches) {
    const bool is_second = std::ranges::any_of(
        steps, [&](const StepInProgress& other) { return other.batch->tenant == batch->tenant; });
    auto begun = is_second
                     ? Result<StepInProgress>(error(
                           Code::kInvalid, "tenant {} has two batches in one pass", batch->tenant))
                     : runner_.begin_step(*batch);
    reports.push_back(begun.ok() ? Result<TrainReport>(begun->report) : begun.error());
    if (!begun.ok() || begun->report.skipped) continue;
    begun->index = reports.size() - 1;
    steps.push_back(std::move(begun).value());
  }
  const Status ran = run_passes(steps, stop_requested);
  const bool is_broken = !ran.ok() && ran.error().code() != Code::kCancelled;
  for (StepInProgress& step : steps) {
    Result<TrainReport>& report = reports[step.index];
    if (ran.ok())
      report = runner_.end_step(step);
    else if (is_broken && steps.size() > 1)
      report = this->step(*step.batch, stop_requested);  // the pass may have failed because of
                                                         // another step
    else
      report = ran.error();
  }
  return reports;
}

Status TenantSteps::run_passes(std::span<StepInProgress> steps,
                               const StopRequested& stop_requested) {
  std::vector<StepInProgress*> all;
  for (StepInProgress& step : steps) all.push_back(&step);
  while (!std::ranges::all_of(steps, &StepInProgress::is_done)) {
    RETURN_IF_ERROR(run_pass(all, stop_requested));
    if (runner_.has_debug_fault()) break;
  }
  return ok();
}

/// The gradients of an adapter are added from the same micro-batches in the same order as when its
/// step runs alone.
Status TenantSteps::run_pass(std::span<StepInProgress* const> steps,
                             const StopRequested& stop_requested) {
  if (stop_requested && stop_requested()) {
    size_t num_run = 0, num_all = 0;
    for (const StepInProgress* step : steps) {
      num_run += step->next;
      num_all += step->micro_batches.size();
    }
    return error(Code::kCancelled, "the step was stopped after {} of {} micro-batches", num_run,
                 num_all);
  }
  std::vector<StepInProgress*> taken;
  int64_t rows = 0;
  for (StepInProgress* step : steps) {
    if (step->is_done()) continue;
    if (step->is_measuring()) {
      RETURN_IF_ERROR(runner_.measure(*step));
      continue;
    }
    const int64_t more = step->micro_batches[step->next].rows.num_rows();
    if (!taken.empty() && rows + more > rows_max_) continue;
    taken.push_back(step);
    rows += more;
  }
  if (taken.empty()) return ok();
  std::ranges::stable_sort(taken, {}, &StepInProgress::adapter);
  MicroBatch pass;
  std::vector<LearnedPart> parts;
  for (StepInProgress* step : taken) {
    const MicroBatch& more = step->micro_batches[step->next++];
    pass.append(more, step->adapter);
    parts.push_back({more.targets.size(), step->batch->loss, step->objective,
                     1.0 / static_cast<double>(step->report.num_loss_tokens), &step->sums});
  }
  return runner_.run_pass(pass, parts);
}

int64_t TenantSteps::next_tokens(const TrainBatch& batch, int64_t num_tokens) const {
  if (has_more_passes(batch)) {
    const StepInProgress& step = *unfinished_.at(batch.tenant);
    const size_t next = step.is_measuring() ? step.num_measured : step.next;
    return step.micro_batches[next].rows.num_rows();
  }
  return std::min<int64_t>(num_tokens, rows_max_);
}

std::vector<std::optional<Result<TrainReport>>> TenantSteps::pass_together(
    std::span<const std::shared_ptr<const TrainBatch>> batches,
    const StopRequested& stop_requested) {
  std::vector<std::optional<Result<TrainReport>>> reports(batches.size());
  std::vector<StepInProgress*> steps;
  for (size_t i = 0; i < batches.size(); ++i) {
    auto& going_on = unfinished_[batches[i]->tenant];
    if (going_on == nullptr || going_on->owned != batches[i]) {
      auto begun = runner_.begin_step(*batches[i]);
      if (!begun.ok() || begun->report.skipped) {
        reports[i] = begun.ok() ? Result<TrainReport>(begun->report) : begun.error();
        unfinished_.erase(batches[i]->tenant);
        continue;
      }
      going_on = std::make_shared<StepInProgress>(std::move(begun).value());
      going_on->owned = batches[i];
    }
    going_on->index = i;
    steps.push_back(going_on.get());
  }
  if (steps.empty()) return reports;
  const Status ran = run_pass(steps, stop_requested);
  const bool is_broken = !ran.ok() && ran.error().code() != Code::kCancelled;
  for (StepInProgress* step : steps) {
    if (ran.ok() && !step->is_done()) continue;
    std::optional<Result<TrainReport>>& report = reports[step->index];
    const TrainBatch& batch = *batches[step->index];
    if (ran.ok())
      report = runner_.end_step(*step);
    else if (is_broken && steps.size() > 1)
      report = this->step(batch, stop_requested);  // the pass may have failed because of another
                                                   // step
    else
      report = ran.error();
    unfinished_.erase(batch.tenant);
  }
  return reports;
}

}  // namespace primerl
