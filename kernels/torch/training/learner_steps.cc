// The steps of TorchLearner: of one tenant, or of several that share passes over the model.
#include <algorithm>
#include <cstdio>

#include "graph/base/random.h"
#include "kernels/torch/boundary.h"
#include "kernels/torch/finite.h"
#include "kernels/torch/training/learner.h"
#include "kernels/torch/training/step_report.h"

namespace primerl {

namespace {

/// Of step `step` of a tenant: its seed is of the tenant's name.
AdapterDropout dropout_of(const AdapterWeights* adapter, int64_t step) {
  if (adapter == nullptr) return {};
  const AdapterConfig& config = adapter->table().config();
  return {config.dropout,
          mix(stable_hash("dropout", config.init_seed), static_cast<uint64_t>(step))};
}

}  // namespace

/// One step that is under way.
struct TorchLearner::Stepping {
  size_t index = 0;                         // of its batch
  std::shared_ptr<const TrainBatch> owned;  // of a step that goes on in later turns
  const TrainBatch* batch = nullptr;
  Trained* trained = nullptr;
  TrainReport report;
  std::vector<MicroBatch> micro_batches;
  size_t next = 0;  // micro-batch
  LossSums sums;

  bool is_done() const { return next == micro_batches.size(); }
};

void TorchLearner::look(const std::string& name, const at::Tensor& rows) {
  if (options_.debug.check_finite && broken_.empty())
    if (const std::string where = first_not_finite(rows); !where.empty())
      broken_ = fmt::format("activation '{}' is {} of micro-batch {}", name, where, micro_batch_);
  if (!options_.debug.dump_folder.empty())
    dump_.add(fmt::format("micro_batch.{}.{}", micro_batch_, name), rows);
}

/// A debug file that cannot be written is no reason to train otherwise than without it.
void TorchLearner::keep_batch(const TrainBatch& batch, int64_t step) {
  const Status kept = kept_batches_.keep(step, batch);
  if (kept.ok() || std::exchange(has_warned_, true)) return;
  fmt::print(stderr, "warning: the batch of step {} is not kept (said once): {}\n", step,
             kept.error().text());
}

Status TorchLearner::dump(const Trained& trained) {
  auto all = trained.tensors.copy_gradients();
  std::reverse(all.begin(), all.end());
  dump_.add("gradient", all);
  dump_.add("weight", trained.tensors.copy_weights());
  return dump_.write(options_.debug.dump_folder);
}

Result<TrainReport> TorchLearner::step(const TrainBatch& batch,
                                       const StopRequested& stop_requested) {
  const TrainBatch* const one = &batch;
  return std::move(run_steps({&one, 1}, stop_requested).front());
}

std::vector<Result<TrainReport>> TorchLearner::step_together(
    std::span<const TrainBatch* const> batches, const StopRequested& stop_requested) {
  return shares_passes() ? run_steps(batches, stop_requested)
                         : Learner::step_together(batches, stop_requested);
}

/// A vendor's product of more rows may have other bits, and the debug options look at the passes of
/// one step.
bool TorchLearner::shares_passes() const {
  return trained_.front().adapter != nullptr && weights_.numerics() == Numerics::kInvariant &&
         !options_.debug.check_finite && options_.debug.dump_folder.empty();
}

std::vector<Result<TrainReport>> TorchLearner::run_steps(std::span<const TrainBatch* const> batches,
                                                         const StopRequested& stop_requested) {
  std::vector<Result<TrainReport>> reports;
  std::vector<Stepping> steps;
  for (const TrainBatch* batch : batches) {
    auto begun = at_boundary("training step", [&]() -> Result<Stepping> {
      for (const Stepping& other : steps)
        if (other.batch->tenant == batch->tenant)
          return error(Code::kInvalid, "tenant {} has two batches in one pass", batch->tenant);
      return begin_step(*batch);
    });
    reports.push_back(begun.ok() ? Result<TrainReport>(begun->report) : begun.error());
    if (!begun.ok() || begun->report.skipped) continue;
    begun->index = reports.size() - 1;
    steps.push_back(std::move(begun).value());
  }
  const Status ran =
      at_boundary("training step", [&] { return run_passes(steps, stop_requested); });
  const bool is_broken = !ran.ok() && ran.error().code() != Code::kCancelled;
  for (Stepping& step : steps) {
    Result<TrainReport>& report = reports[step.index];
    if (ran.ok())
      report = at_boundary("training step", [&] { return end_step(step); });
    else if (is_broken && steps.size() > 1)
      report = this->step(*step.batch, stop_requested);  // what broke the pass may be another's
    else
      report = ran.error();
  }
  return reports;
}

Result<TorchLearner::Stepping> TorchLearner::begin_step(const TrainBatch& batch) {
  ASSIGN_OR_RETURN(Trained* const trained, trained_of(batch.tenant));
  RETURN_IF_ERROR(check_samples(batch, limits()));
  const int64_t number = trained->tensors.num_steps() + 1;
  if (!options_.debug.batch_folder.empty()) keep_batch(batch, number);
  broken_.clear();
  dump_ = {};
  // An older dump must not be taken for that of a step that fails.
  if (!options_.debug.dump_folder.empty())
    RETURN_IF_ERROR(StepDump::remove(options_.debug.dump_folder));
  micro_batch_ = 0;
  Stepping step;
  step.batch = &batch;
  step.trained = trained;
  step.report = begin_report(batch, trained->rules, number);
  if (step.report.skipped) return step;
  step.micro_batches = micro_batches_of(batch);
  use_adapter(*trained, dropout_of(trained->adapter.get(), number));
  trained->tensors.clear_gradients();
  return step;
}

/// A tenant's micro-batches are the same whoever has a part in the passes, and however they are
/// looked at: they say in which order its gradient is added up.
std::vector<MicroBatch> TorchLearner::micro_batches_of(const TrainBatch& batch) const {
  return pack(batch.samples, options_.micro_batch_tokens, micro_batch_tokens());
}

int32_t TorchLearner::micro_batch_tokens() const {
  const bool may_share =
      trained_.front().adapter != nullptr && weights_.numerics() == Numerics::kInvariant;
  return may_share ? std::min(options_.micro_batch_tokens, options_.adapter_batch_tokens)
                   : options_.micro_batch_tokens;
}

Status TorchLearner::run_passes(std::span<Stepping> steps, const StopRequested& stop_requested) {
  std::vector<Stepping*> all;
  for (Stepping& step : steps) all.push_back(&step);
  while (!std::ranges::all_of(steps, &Stepping::is_done)) {
    RETURN_IF_ERROR(run_pass(all, stop_requested));
    if (!broken_.empty()) break;
  }
  return ok();
}

/// A pass has at most one micro-batch of each step, as it is when the step is alone: so the
/// gradients of an adapter are added up in the same order, from the same rows.
Status TorchLearner::run_pass(std::span<Stepping* const> steps,
                              const StopRequested& stop_requested) {
  if (stop_requested && stop_requested()) {
    size_t num_run = 0, num_all = 0;
    for (const Stepping* step : steps) {
      num_run += step->next;
      num_all += step->micro_batches.size();
    }
    return error(Code::kCancelled, "the step was stopped after {} of {} micro-batches", num_run,
                 num_all);
  }
  MicroBatch pass;
  std::vector<LearnedPart> parts;
  for (Stepping* step : steps) {
    if (step->is_done()) continue;
    const MicroBatch& more = step->micro_batches[step->next];
    if (!parts.empty() && pass.rows.num_rows() + more.rows.num_rows() > options_.micro_batch_tokens)
      continue;
    pass.append(more, slot_of(*step->trained));
    parts.push_back({more.targets.size(), step->batch->loss, &step->trained->rules.loss,
                     1.0 / static_cast<double>(step->report.num_loss_tokens), &step->sums});
    ++step->next;
  }
  const float* normed = pass_.forward(pass.rows);
  dnormed_.assign(static_cast<size_t>(pass.rows.num_rows() * model_.config.hidden_size), 0.0F);
  head_.learn(pass.targets, parts, normed, dnormed_.data());
  pass_.backward(pass.rows, dnormed_.data());
  ++micro_batch_;
  return ok();
}

int64_t TorchLearner::next_tokens(const TrainBatch& batch) const {
  const auto found = going_on_.find(batch.tenant);
  if (found != going_on_.end() && found->second->batch == &batch)
    return found->second->micro_batches[found->second->next].rows.num_rows();
  const int64_t num_tokens = Learner::next_tokens(batch);
  if (!shares_passes() || num_tokens <= micro_batch_tokens()) return num_tokens;
  // What is refused is a turn, too.
  if (!check_samples(batch, limits()).ok()) return 1;
  const auto micro_batches = micro_batches_of(batch);
  return micro_batches.empty() ? 1 : micro_batches.front().rows.num_rows();
}

void TorchLearner::discard(TenantSlot tenant) { going_on_.erase(tenant); }

std::vector<std::optional<Result<TrainReport>>> TorchLearner::pass_together(
    std::span<const std::shared_ptr<const TrainBatch>> batches,
    const StopRequested& stop_requested) {
  if (!shares_passes()) return Learner::pass_together(batches, stop_requested);
  std::vector<std::optional<Result<TrainReport>>> reports(batches.size());
  std::vector<Stepping*> steps;
  for (size_t i = 0; i < batches.size(); ++i) {
    auto& going_on = going_on_[batches[i]->tenant];
    if (going_on == nullptr || going_on->owned != batches[i]) {
      auto begun = at_boundary("training step", [&] { return begin_step(*batches[i]); });
      if (!begun.ok() || begun->report.skipped) {
        reports[i] = begun.ok() ? Result<TrainReport>(begun->report) : begun.error();
        going_on_.erase(batches[i]->tenant);
        continue;
      }
      going_on = std::make_shared<Stepping>(std::move(begun).value());
      going_on->owned = batches[i];
    }
    going_on->index = i;
    steps.push_back(going_on.get());
  }
  if (steps.empty()) return reports;
  const Status ran = at_boundary("training step", [&] { return run_pass(steps, stop_requested); });
  const bool is_broken = !ran.ok() && ran.error().code() != Code::kCancelled;
  for (Stepping* step : steps) {
    if (ran.ok() && !step->is_done()) continue;
    std::optional<Result<TrainReport>>& report = reports[step->index];
    const TrainBatch& batch = *batches[step->index];
    if (ran.ok())
      report = at_boundary("training step", [&] { return end_step(*step); });
    else if (is_broken && steps.size() > 1)
      report = this->step(batch, stop_requested);  // what broke the pass may be another's
    else
      report = ran.error();
    going_on_.erase(batch.tenant);
  }
  return reports;
}

Result<TrainReport> TorchLearner::end_step(Stepping& step) {
  TrainReport& report = step.report;
  TrainedTensors& tensors = step.trained->tensors;
  report.num_micro_batches = static_cast<int32_t>(step.next);
  if (!broken_.empty()) {
    report.skipped = true;
    report.skip_reason = fmt::format("{} (step {})", broken_, tensors.num_steps() + 1);
    if (!options_.debug.dump_folder.empty())
      RETURN_IF_ERROR(dump_.write(options_.debug.dump_folder));
    return report;
  }
  add_means(step.sums, report);
  tensors.update(step.trained->rules.optimizer, report);
  if (!options_.debug.dump_folder.empty()) RETURN_IF_ERROR(dump(*step.trained));
  return report;
}

}  // namespace primerl
