#include "kernels/common/learner_core.h"

#include <algorithm>
#include <cstdio>

#include "graph/base/files.h"
#include "kernels/common/finite.h"
#include "kernels/common/flops.h"
#include "kernels/common/gradient_norms.h"
#include "kernels/common/step_report.h"
#include "kernels/models/adapter_folder.h"
#include "kernels/train/optimizer_state.h"
#include "kernels/train/step_targets.h"
#include "kernels/weights/safetensors.h"

namespace primerl {
namespace {

/// Whether the reference model has to compute log-probabilities: the batch has none.
bool needs_reference_pass(const TrainBatch& batch, const Objective& objective) {
  return objective.needs_reference() && batch.samples.front().reference.empty();
}

bool needs_no_measure(const TrainBatch& batch, const Objective& objective) {
  if (batch.loss != LossKind::kPolicy) return true;
  return !objective.needs_measured() && !needs_reference_pass(batch, objective);
}

/// A batch with a teacher's likeliest tokens is for the objective that reads them, and for no
/// other.
Status check_data(const TrainBatch& batch, const Objective& objective) {
  if (batch.loss == LossKind::kCrossEntropy) return ok();
  const bool has_top = batch.loss == LossKind::kTopK;
  if (has_top == (objective.rule == ObjectiveRule::kTopK)) return ok();
  return error(Code::kInvalid, "{}",
               has_top ? "the batch has top tokens of a teacher, which the objective does not read"
                       : "the objective 'gkd' needs the top tokens of a teacher, and the batch has "
                         "none");
}

class CapturedLearner final : public LearnerImage {
 public:
  /// `model` is of the learner; `adapter` is copied, because its tenant may leave. Null: whole
  /// weights.
  CapturedLearner(LearnerCopy copy, const ModelFolder& model, const AdapterConfig* adapter,
                  std::string base_folder)
      : copy_(std::move(copy)),
        model_(model),
        adapter_(adapter == nullptr ? std::nullopt : std::optional(*adapter)),
        base_folder_(std::move(base_folder)) {}

  Status write(const std::filesystem::path& folder) const override {
    const auto weights = folder / "weights";
    if (adapter_)
      RETURN_IF_ERROR(write_adapter_folder(weights, *adapter_, base_folder_, copy_.weights));
    else
      RETURN_IF_ERROR(write_model_folder(weights, model_, copy_.weights));
    RETURN_IF_ERROR(write_optimizer_files(folder / "learner", copy_.moments, copy_.state));
    return system_files().sync(folder);
  }

 private:
  const LearnerCopy copy_;
  const ModelFolder& model_;
  const std::optional<AdapterConfig> adapter_;
  const std::string base_folder_;
};

}  // namespace

Error no_reference() {
  return error(Code::kInvalid, "the objective needs a reference model, and there is none")
      .note("the reference of an adapter is its base: add [tenant.<name>.adapter]")
      .note("or the batch has its log-probabilities: name a teacher in [tenant.<name>] teacher");
}

LearnerCore::Largest LearnerCore::largest_of(std::span<const AdapterTraining> adapters) {
  Largest largest;
  for (const AdapterTraining& training : adapters) {
    largest.rank = std::max(largest.rank, training.adapter.rank);
    for (auto& target : named_targets(training.adapter)) largest.targets.insert(std::move(target));
  }
  return largest;
}

LearnerCore::LearnerCore(const LearnerOptions& options, std::unique_ptr<LearnerBackend> backend,
                         std::string base_folder, std::span<const AdapterTraining> adapters)
    : options_(options),
      base_folder_(std::move(base_folder)),
      backend_(std::move(backend)),
      has_adapters_(!adapters.empty()),
      largest_(largest_of(adapters)),
      kept_batches_(options.debug.batch_folder, static_cast<size_t>(options.debug.batches_max)) {
  const auto add = [this](TenantSlot tenant, const TrainingRules& rules, bool is_free) {
    trained_.push_back({tenant, rules, objective_of(rules.loss), is_free});
  };
  for (const auto& training : adapters) add(training.tenant, training.rules, training.is_free);
  if (adapters.empty())
    add({}, {options.loss, options.optimizer, options.schedule, options.max_steps}, false);
  backend_->on_layer([this] {
    if (stop_requested_ != nullptr && *stop_requested_) (void)(*stop_requested_)();
  });
  if (options.debug.check_finite || !options.debug.dump_folder.empty())
    visit([this](const std::string& name, const at::Tensor& rows) { look(name, rows); });
}

Result<size_t> LearnerCore::slot_of(TenantSlot tenant) const {
  for (size_t slot = 0; slot < trained_.size(); ++slot)
    if (!has_adapters() || (trained_[slot].tenant == tenant && !trained_[slot].is_free))
      return slot;
  const auto num_here = std::ranges::count(trained_, false, &Trained::is_free);
  return error(Code::kNotFound, "this learner has no adapter of tenant {}", tenant)
      .note(fmt::format("it trains adapters of {} tenants", num_here));
}

int32_t LearnerCore::adapter_of(size_t slot) const {
  return has_adapters() ? static_cast<int32_t>(slot) : kNoAdapter;
}

Status LearnerCore::fill(const std::vector<WeightTensor>& tensors) {
  RETURN_IF_ERROR(backend_->fill(tensors));
  unused_.clear();
  ASSIGN_OR_RETURN(const auto match, match_tensors(backend_->table(), tensors));
  for (const auto* tensor : match.unused) unused_.push_back(*tensor);
  return ok();
}

Status LearnerCore::fill_adapter(TenantSlot tenant, const std::vector<WeightTensor>& tensors) {
  ASSIGN_OR_RETURN(const size_t slot, slot_of(tenant));
  if (!has_adapters())
    return error(Code::kInvalid, "this learner trains whole weights, not an adapter");
  return backend_->run("filling an adapter", 0,
                       [&] { return backend_->fill_adapter(slot, tensors); });
}

Status LearnerCore::start_from(std::span<const AdapterTraining> adapters) {
  for (const auto& training : adapters) {
    if (training.start.empty() || training.is_free) continue;
    auto tensors = read_adapter_start(training.start, backend_->model().config, training.adapter);
    const Status started =
        tensors.ok() ? fill_adapter(training.tenant, *tensors) : Status(tensors.error());
    if (!started.ok()) return Error(started.error()).while_doing(training.start);
  }
  return ok();
}

void LearnerCore::look(const std::string& name, const at::Tensor& rows) {
  if (is_measuring_) return;
  const at::Tensor host = rows.is_cpu() ? rows : rows.to(at::kFloat).cpu();
  if (options_.debug.check_finite && debug_fault_.empty())
    if (const std::string where = first_not_finite(host); !where.empty())
      debug_fault_ =
          fmt::format("activation '{}' is {} of micro-batch {}", name, where, micro_batch_);
  if (!options_.debug.dump_folder.empty() && is_dumped_)
    dump_.add(fmt::format("micro_batch.{}.{}", micro_batch_, name), host);
}

/// Training must not depend on whether a debug file can be written.
void LearnerCore::keep_batch(const TrainBatch& batch, int64_t step) {
  const Status kept = kept_batches_.keep(step, batch);
  if (kept.ok() || std::exchange(has_warned_, true)) return;
  fmt::print(stderr, "warning: the batch of step {} is not kept (logged once): {}\n", step,
             kept.error().text());
}

Status LearnerCore::dump(size_t slot) {
  auto all = backend_->gradients(slot);
  std::reverse(all.begin(), all.end());
  dump_.add("gradient", all);
  dump_.add("weight", backend_->weights(slot));
  return dump_.write(options_.debug.dump_folder);
}

Result<TrainReport> LearnerCore::step(const TrainBatch& batch,
                                      const StopRequested& stop_requested) {
  const SignsOfLife signs(*this, stop_requested);
  return steps_.step(batch, stop_requested);
}

std::vector<Result<TrainReport>> LearnerCore::step_together(
    std::span<const TrainBatch* const> batches, const StopRequested& stop_requested) {
  const SignsOfLife signs(*this, stop_requested);
  return shares_passes() ? steps_.step_together(batches, stop_requested)
                         : Learner::step_together(batches, stop_requested);
}

std::vector<std::optional<Result<TrainReport>>> LearnerCore::pass_together(
    std::span<const std::shared_ptr<const TrainBatch>> batches,
    const StopRequested& stop_requested) {
  const SignsOfLife signs(*this, stop_requested);
  return shares_passes() ? steps_.pass_together(batches, stop_requested)
                         : Learner::pass_together(batches, stop_requested);
}

int64_t LearnerCore::next_tokens(const TrainBatch& batch) const {
  const int64_t num_tokens = Learner::next_tokens(batch);
  if (!shares_passes()) return num_tokens;
  const auto wanted = backend_->adapter_batch_tokens();
  if (!wanted || num_tokens <= *wanted || steps_.has_more_passes(batch))
    return steps_.next_tokens(batch, num_tokens);
  // A refused batch also uses a work call.
  if (!check_samples(batch, limits()).ok()) return 1;
  const auto micro_batches = micro_batches_of(batch);
  return micro_batches.empty() ? 1 : micro_batches.front().rows.num_rows();
}

/// The debug options observe the passes of one step.
bool LearnerCore::shares_passes() const {
  return backend_->can_share_passes() && !options_.debug.check_finite &&
         options_.debug.dump_folder.empty();
}

/// A tenant's micro-batches do not depend on other tenants in the passes or on debug options: they
/// define the order in which its gradient is added.
std::vector<MicroBatch> LearnerCore::micro_batches_of(const TrainBatch& batch) const {
  return pack(batch.samples, options_.micro_batch_tokens, rows_wanted());
}

Result<StepInProgress> LearnerCore::begin_step(const TrainBatch& batch) {
  ASSIGN_OR_RETURN(const size_t slot, slot_of(batch.tenant));
  RETURN_IF_ERROR(open_.check_may_step(slot));
  RETURN_IF_ERROR(check_samples(batch, limits()));
  RETURN_IF_ERROR(check_data(batch, trained_[slot].objective));
  const int64_t number = backend_->num_steps(slot) + 1;
  if (!options_.debug.batch_folder.empty()) keep_batch(batch, number);
  debug_fault_.clear();
  dump_ = {};
  // An older dump must not be mistaken for that of a failed step.
  if (!options_.debug.dump_folder.empty())
    RETURN_IF_ERROR(StepDump::remove(options_.debug.dump_folder));
  micro_batch_ = 0;
  StepInProgress step;
  step.batch = &batch;
  step.trained = slot;
  step.adapter = adapter_of(slot);
  step.objective = &trained_[slot].objective;
  step.report = begin_report(batch, trained_[slot].rules, number);
  if (step.report.skipped) return step;
  RETURN_IF_ERROR(backend_->run("training step", 0, [&] {
    step.micro_batches = micro_batches_of(batch);
    step.report.measures.flops =
        training_flops(backend_->model().config, step.micro_batches, has_adapters());
    step.report.measures.peak_flops =
        options_.peak_tflops > 0 ? options_.peak_tflops * 1e12 : backend_->peak_flops();
    if (needs_no_measure(batch, *step.objective)) step.num_measured = step.micro_batches.size();
    if (batch.loss != LossKind::kCrossEntropy) weigh(step.micro_batches, *step.objective);
    const AdapterTable* const adapter = backend_->adapter(slot);
    return backend_->begin(
        slot, adapter == nullptr ? AdapterDropout() : dropout_of(adapter->config(), number));
  }));
  return step;
}

/// Each micro-batch runs with the rows that its pass will have, so the log-probabilities have the
/// same bits there. (On a CUDA device GEMMs of a shared pass may round differently.)
Status LearnerCore::measure(StepInProgress& step) {
  MicroBatch& next = step.micro_batches[step.num_measured];
  const Objective& objective = *step.objective;
  const auto run = [&](bool is_of_reference, float TrainTarget::*member) -> Status {
    MicroBatch rows;
    rows.append(next, step.adapter);
    std::vector<float> logprobs;
    is_measuring_ = true;
    const Status measured =
        backend_->run("measuring a training step", rows.rows.num_rows(), [&]() -> Status {
          ASSIGN_OR_RETURN(logprobs, backend_->measure(step.trained, rows, is_of_reference));
          return ok();
        });
    is_measuring_ = false;
    RETURN_IF_ERROR(measured);
    for (size_t i = 0; i < logprobs.size(); ++i) next.targets[i].*member = logprobs[i];
    return ok();
  };
  if (objective.needs_measured()) RETURN_IF_ERROR(run(false, &TrainTarget::measured));
  if (needs_reference_pass(*step.batch, objective))
    RETURN_IF_ERROR(run(true, &TrainTarget::reference));
  if (++step.num_measured == step.micro_batches.size()) plan(step.micro_batches, objective);
  return ok();
}

Status LearnerCore::run_pass(const MicroBatch& pass, std::span<const LearnedPart> parts) {
  RETURN_IF_ERROR(backend_->run("training step", pass.rows.num_rows(),
                                [&] { return backend_->pass(pass, parts); }));
  ++micro_batch_;
  return ok();
}

Result<TrainReport> LearnerCore::end_step(StepInProgress& step) {
  TrainReport report = step.report;
  report.num_micro_batches = static_cast<int32_t>(step.next);
  RETURN_IF_ERROR(backend_->run("training step", 0, [&] { return update(step, report); }));
  return report;
}

Status LearnerCore::update(const StepInProgress& step, TrainReport& report) {
  const size_t slot = step.trained;
  const bool is_dumped = !options_.debug.dump_folder.empty();
  if (!debug_fault_.empty()) {
    report.skipped = true;
    report.skip_reason = fmt::format("{} (step {})", debug_fault_, backend_->num_steps(slot) + 1);
    return is_dumped ? dump_.write(options_.debug.dump_folder) : ok();
  }
  add_means(step.sums, report);
  if (step.batch->loss == LossKind::kPolicy) step.sums.measures.write(report.measures);
  RETURN_IF_ERROR(update_weights(slot, nullptr, report));
  return is_dumped ? dump(slot) : ok();
}

Status LearnerCore::update_weights(size_t slot, const AdamNumbers* adam, TrainReport& report) {
  // Before the update: an error after it would look like a step that changed nothing.
  ASSIGN_OR_RETURN(auto norms, gradient_norms());
  RETURN_IF_ERROR(backend_->update(slot, adam, report));
  if (report.skipped) return ok();
  if (has_adapters()) norms[static_cast<size_t>(GradientGroup::kAdapters)] = report.grad_norm;
  report.measures.grad_norms = std::move(norms);
  return ok();
}

Result<std::vector<double>> LearnerCore::gradient_norms() {
  if (has_adapters()) return std::vector<double>(kGradientGroups.size(), 0);
  ASSIGN_OR_RETURN(const auto squares, backend_->gradient_squares());
  return norms_by_group(backend_->table(), squares);
}

Result<std::shared_ptr<const WeightSnapshot>> LearnerCore::snapshot(TenantSlot tenant,
                                                                    PolicyVersion version) {
  ASSIGN_OR_RETURN(const size_t slot, slot_of(tenant));
  auto copy = std::make_shared<WeightSnapshot>();
  copy->version = version;
  RETURN_IF_ERROR(
      backend_->run("a copy of the weights", 0, [&] { return backend_->snapshot(slot, *copy); }));
  return std::shared_ptr<const WeightSnapshot>(std::move(copy));
}

Result<std::vector<float>> LearnerCore::score(TenantSlot tenant,
                                              const std::vector<int32_t>& tokens) {
  ASSIGN_OR_RETURN(const size_t slot, slot_of(tenant));
  ASSIGN_OR_RETURN(const TrainBatch batch, batch_to_score(tokens, limits()));
  std::vector<float> logprobs;
  const auto num_rows = static_cast<int32_t>(tokens.size());
  RETURN_IF_ERROR(backend_->run("scoring", num_rows, [&]() -> Status {
    auto batches = pack(batch.samples, num_rows);
    if (batches.empty()) return ok();
    for (auto& span : batches.front().rows.spans) span.adapter = adapter_of(slot);
    ASSIGN_OR_RETURN(logprobs, backend_->score(slot, batches.front()));
    return ok();
  }));
  return logprobs;
}

Result<AnswerLoss> LearnerCore::evaluate(const TrainBatch& batch) {
  ASSIGN_OR_RETURN(const size_t slot, slot_of(batch.tenant));
  RETURN_IF_ERROR(check_samples(batch, limits()));
  AnswerLoss loss;
  for (MicroBatch& rows : micro_batches_of(batch)) {
    for (auto& span : rows.rows.spans) span.adapter = adapter_of(slot);
    is_measuring_ = true;
    const Status evaluated = backend_->run("evaluating", rows.rows.num_rows(), [&]() -> Status {
      ASSIGN_OR_RETURN(const auto logprobs, backend_->score(slot, rows));
      for (size_t i = 0; i < logprobs.size(); ++i)
        add_answer(logprobs[i], rows.targets[i].weight, loss);
      return ok();
    });
    is_measuring_ = false;
    RETURN_IF_ERROR(evaluated);
  }
  return loss;
}

Result<std::shared_ptr<const LearnerImage>> LearnerCore::capture(TenantSlot tenant) {
  ASSIGN_OR_RETURN(const size_t slot, slot_of(tenant));
  RETURN_IF_ERROR(open_.check_none(slot, "a checkpoint"));
  LearnerCopy copy;
  RETURN_IF_ERROR(backend_->run("copying a learner for a checkpoint", 0, [&]() -> Status {
    ASSIGN_OR_RETURN(copy, backend_->capture(slot));
    return ok();
  }));
  const AdapterTable* adapter = backend_->adapter(slot);
  if (adapter == nullptr) copy.weights.insert(copy.weights.end(), unused_.begin(), unused_.end());
  return std::shared_ptr<const LearnerImage>(std::make_shared<CapturedLearner>(
      std::move(copy), backend_->model(), adapter == nullptr ? nullptr : &adapter->config(),
      base_folder_));
}

Status LearnerCore::save(TenantSlot tenant, const std::filesystem::path& folder) {
  ASSIGN_OR_RETURN(const auto image, capture(tenant));
  return image->write(folder);
}

Status LearnerCore::load(TenantSlot tenant, const std::filesystem::path& folder) {
  ASSIGN_OR_RETURN(const size_t slot, slot_of(tenant));
  const auto weights = folder / "weights";
  return backend_->run("loading a learner", 0, [&]() -> Status {
    std::vector<WeightTensor> tensors;
    if (const AdapterTable* adapter = backend_->adapter(slot); adapter != nullptr) {
      ASSIGN_OR_RETURN(auto read, read_adapter_folder(weights, backend_->model().config));
      Status same = check_same_adapter(adapter->config(), read.config);
      if (!same.ok()) return Error(same.error()).while_doing(weights.string());
      tensors = std::move(read.tensors);
    } else {
      ASSIGN_OR_RETURN(tensors, read_model_tensors(weights));
    }
    Status loaded = backend_->load(slot, tensors, folder / "learner");
    if (!loaded.ok()) return Error(loaded.error()).while_doing(folder.string());
    open_.close(slot);  // they are of the weights before
    return ok();
  });
}

std::string LearnerCore::describe() const {
  const std::string device = backend_->device_text();
  int64_t num_steps = 0, num_parameters = 0, num_here = 0;
  for (size_t slot = 0; slot < trained_.size(); ++slot) {
    if (trained_[slot].is_free) continue;
    ++num_here;
    num_steps += backend_->num_steps(slot);
    if (has_adapters()) num_parameters += backend_->adapter(slot)->tensors().num_parameters();
  }
  if (!has_adapters())
    return fmt::format("{} optimizer steps, {} parameters{}{}", num_steps,
                       backend_->table().num_parameters(), device.empty() ? "" : " on ", device);
  return fmt::format("{} optimizer steps, {} adapters of {} parameters on {} that are frozen{}{}",
                     num_steps, num_here, num_parameters, backend_->table().num_parameters(),
                     device.empty() ? "" : ", on ", device);
}

std::vector<WeightTensor> LearnerCore::gradients(TenantSlot tenant) {
  const size_t slot = slot_of(tenant).value();
  std::vector<WeightTensor> copied;
  const Status read = backend_->run("copying gradients", 0, [&] {
    copied = backend_->gradients(slot);
    return ok();
  });
  CHECK(read.ok(), read.error().text());
  return copied;
}

}  // namespace primerl
