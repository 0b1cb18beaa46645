#include "kernels/cuda/learner/learner.h"

#include <ATen/Context.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "graph/base/files.h"
#include "kernels/common/boundary.h"
#include "kernels/common/finite.h"
#include "kernels/common/memory.h"
#include "kernels/common/step_report.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/learner/learner_memory.h"
#include "kernels/models/adapter_folder.h"
#include "kernels/weights/safetensors.h"

namespace primerl {
namespace {

/// Whether libtorch was configured for operations that add in a fixed order. It reads the
/// environment itself at each GEMM.
bool wants_repeatable() {
  const char* config = std::getenv("CUBLAS_WORKSPACE_CONFIG");
  const std::string_view value = config == nullptr ? "" : config;
  if (value != ":4096:8" && value != ":16:8") return false;
  // A setting of the whole process: flash attention has no other one.
  at::globalContext().setDeterministicAlgorithms(true, false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  return true;
}

}  // namespace

CudaLearner::CudaLearner(const LearnerOptions& options, ModelFolder model, const CudaStream& stream)
    : CudaLearner(options, std::move(model), {}, nullptr, {}, stream) {}

CudaLearner::CudaLearner(const LearnerOptions& options, ModelFolder model, std::string folder,
                         std::shared_ptr<const CudaFrozenBase> base,
                         std::span<const AdapterTraining> adapters, const CudaStream& stream)
    : options_(options),
      model_(std::move(model)),
      folder_(std::move(folder)),
      training_(adapters.begin(), adapters.end()),
      table_(model_.config),
      stream_(stream),
      kept_batches_(options.debug.batch_folder, static_cast<size_t>(options.debug.batches_max)),
      whole_(adapters.empty()
                 ? std::make_unique<CudaTrainedWeights>(table_, type_named(options.dtype), stream_)
                 : nullptr),
      base_(std::move(base)),
      untrained_(at::zeros({adapters.empty() ? 0 : table_.count() - table_.trained_count()},
                           at::TensorOptions(stream_.device()).dtype(at::kFloat))),
      adapters_(adapters.empty() ? nullptr
                                 : std::make_unique<LearnerAdapters>(
                                       table_, training_, type_named(options.dtype), stream_)),
      pass_(
          model_.config, [this](std::string_view name) { return with_codes(name); },
          type_named(options.dtype), adapters_.get(), stream_, recompute_of(options.recompute),
          wants_repeatable()),
      head_(
          model_.config, [this](std::string_view name) { return parameter(name); },
          type_named(options.dtype), stream_) {
  if (whole_ != nullptr) {
    trained_.push_back({{},
                        {options.loss, options.optimizer, options.schedule, options.max_steps},
                        whole_.get(),
                        nullptr});
    if (!has_selection_biases(table_)) {
      const LearnerBytes bytes =
          learner_bytes(options_, model_.config, {}, options_.micro_batch_tokens);
      buffers_ = std::make_unique<SnapshotBuffers>(
          stream_.device().index(), whole_->published_bytes(), options_.device_snapshots,
          kLearnerReserveBytes, bytes.rows + bytes.head);
    }
  }
  for (size_t slot = 0; slot < training_.size(); ++slot)
    trained_.push_back({training_[slot].tenant, training_[slot].rules, &adapters_->trained(slot),
                        &adapters_->table(slot)});
  if (options.debug.check_finite || !options.debug.dump_folder.empty())
    pass_.visit([this](const std::string& name, const at::Tensor& rows) { look(name, rows); });
}

CudaParameter CudaLearner::parameter(std::string_view name) const {
  if (whole_ != nullptr) return whole_->parameter(name);
  const Parameter* found = table_.find(name);
  if (found == nullptr) return {};
  const auto index = static_cast<size_t>(found - table_.parameters().data());
  CudaParameter made = {base_->weights().tensor(name), {}, adapters_->matrix(index)};
  if (!found->is_trained)
    made.exact = untrained_.narrow(0, found->offset - table_.trained_count(), found->count);
  return made;
}

/// For the training pass, which calls it once per name.
CudaParameter CudaLearner::with_codes(std::string_view name) {
  CudaParameter found = parameter(name);
  if (options_.products == "fp8" && is_fp8_weight(name)) found.fp8 = fp8_.add(found.weight, true);
  return found;
}

Result<CudaLearner::Trained*> CudaLearner::trained_of(TenantSlot tenant) {
  for (auto& trained : trained_)
    if (trained.adapter == nullptr || trained.tenant == tenant) return &trained;
  return error(Code::kNotFound, "this learner has no adapter of tenant {}", tenant)
      .note(fmt::format("it trains adapters of {} tenants", trained_.size()));
}

int32_t CudaLearner::slot_of(const Trained& trained) const {
  if (trained.adapter == nullptr) return kNoAdapter;
  return static_cast<int32_t>(&trained - trained_.data());
}

/// Launched operations may still read memory that is freed here.
CudaLearner::~CudaLearner() { static_cast<void>(stream_.wait()); }

Error CudaLearner::out_of_memory(int64_t rows) {
  pass_.release();
  if (buffers_ != nullptr) buffers_->release_free();
  if (has_adapters()) adapters_->release();
  release_kept_memory();
  const auto facts = cuda_device_facts(cuda_device_index(options_.device));
  return too_large(options_, training_, learner_bytes(options_, model_.config, training_, rows),
                   rows, facts.ok() ? *facts : CudaDeviceFacts{});
}

template <class Body>
auto CudaLearner::on_cuda(std::string_view doing, int64_t rows, Body&& body) -> decltype(body()) {
  bool is_full = false;
  auto result = at_boundary(doing, [&]() -> decltype(body()) {
    const CudaStream::Use use(stream_);
    try {
      return body();
    } catch (const c10::OutOfMemoryError&) {
      is_full = true;
      return error(Code::kExhausted, "{}: no memory", doing);
    }
  });
  // The tensors of the failed call are freed only now.
  if (is_full) return out_of_memory(rows);
  if (result.ok()) return result;
  int64_t num_steps = 0;
  for (const auto& trained : trained_) num_steps += trained.tensors->num_steps();
  const Status usable =
      stream_.check_device(fmt::format("{} (after {} training steps)", doing, num_steps));
  if (!usable.ok()) return Error(usable.error());
  return result;
}

Status CudaLearner::fill(const std::vector<WeightTensor>& tensors) {
  const CudaStream::Use use(stream_);
  RETURN_IF_ERROR(whole_ != nullptr ? whole_->fill(tensors) : fill_biases(tensors));
  RETURN_IF_ERROR(fp8_.quantise_all(stream_));
  unused_.clear();
  ASSIGN_OR_RETURN(const auto match, match_tensors(table_, tensors));
  for (const auto* tensor : match.unused) unused_.push_back(*tensor);
  return ok();
}

Status CudaLearner::fill_biases(const std::vector<WeightTensor>& tensors) {
  const at::Tensor host = zero_floats(untrained_.numel());
  RETURN_IF_ERROR(fill_untrained(table_, tensors, host.mutable_data_ptr<float>()));
  untrained_.copy_(host);
  return stream_.wait();
}

/// Router biases are then 0.
Status CudaLearner::randomize(uint64_t seed) {
  if (whole_ != nullptr) whole_->randomize(seed, model_.config.initializer_range);
  return fp8_.quantise_all(stream_);
}

Status CudaLearner::fill_adapter(TenantSlot tenant, const std::vector<WeightTensor>& tensors) {
  ASSIGN_OR_RETURN(Trained* const trained, trained_of(tenant));
  if (trained->adapter == nullptr)
    return error(Code::kInvalid, "this learner trains whole weights, not an adapter");
  return on_cuda("filling an adapter", 0, [&] { return trained->tensors->fill(tensors); });
}

Status CudaLearner::start_from(const AdapterTraining& training) {
  ASSIGN_OR_RETURN(const auto tensors,
                   read_adapter_start(training.start, model_.config, training.adapter));
  return fill_adapter(training.tenant, tensors);
}

void CudaLearner::look(const std::string& name, const at::Tensor& rows) {
  const at::Tensor host = rows.to(at::kFloat).cpu();
  if (options_.debug.check_finite && debug_fault_.empty())
    if (const std::string where = first_not_finite(host); !where.empty())
      debug_fault_ =
          fmt::format("activation '{}' is {} of micro-batch {}", name, where, micro_batch_);
  if (!options_.debug.dump_folder.empty())
    dump_.add(fmt::format("micro_batch.{}.{}", micro_batch_, name), host);
}

/// Training must not depend on whether a debug file can be written.
void CudaLearner::keep_batch(const TrainBatch& batch, int64_t step) {
  const Status kept = kept_batches_.keep(step, batch);
  if (kept.ok() || std::exchange(has_warned_, true)) return;
  fmt::print(stderr, "warning: the batch of step {} is not kept (logged once): {}\n", step,
             kept.error().text());
}

Status CudaLearner::dump(const Trained& trained) {
  auto all = trained.tensors->copy_gradients();
  std::reverse(all.begin(), all.end());
  dump_.add("gradient", all);
  dump_.add("weight", trained.tensors->copy_weights());
  return dump_.write(options_.debug.dump_folder);
}

std::vector<Result<TrainReport>> CudaLearner::step_together(
    std::span<const TrainBatch* const> batches, const StopRequested& stop_requested) {
  return shares_passes() ? steps_.step_together(batches, stop_requested)
                         : Learner::step_together(batches, stop_requested);
}

std::vector<std::optional<Result<TrainReport>>> CudaLearner::pass_together(
    std::span<const std::shared_ptr<const TrainBatch>> batches,
    const StopRequested& stop_requested) {
  return shares_passes() ? steps_.pass_together(batches, stop_requested)
                         : Learner::pass_together(batches, stop_requested);
}

int64_t CudaLearner::next_tokens(const TrainBatch& batch) const {
  const int64_t num_tokens = Learner::next_tokens(batch);
  return shares_passes() ? steps_.next_tokens(batch, num_tokens) : num_tokens;
}

/// The debug options observe the passes of one step.
bool CudaLearner::shares_passes() const {
  return has_adapters() && !options_.debug.check_finite && options_.debug.dump_folder.empty();
}

Result<StepInProgress> CudaLearner::begin_step(const TrainBatch& batch) {
  ASSIGN_OR_RETURN(Trained* const trained, trained_of(batch.tenant));
  RETURN_IF_ERROR(check_samples(batch, limits()));
  const int64_t number = trained->tensors->num_steps() + 1;
  if (!options_.debug.batch_folder.empty()) keep_batch(batch, number);
  debug_fault_.clear();
  dump_ = {};
  // An older dump must not be mistaken for the dump of a failed step.
  if (!options_.debug.dump_folder.empty())
    RETURN_IF_ERROR(StepDump::remove(options_.debug.dump_folder));
  micro_batch_ = 0;
  StepInProgress step;
  step.batch = &batch;
  step.trained = static_cast<size_t>(trained - trained_.data());
  step.adapter = slot_of(*trained);
  step.loss = &trained->rules.loss;
  step.report = begin_report(batch, trained->rules, number);
  if (step.report.skipped) return step;
  step.micro_batches = pack(batch.samples, options_.micro_batch_tokens);
  if (has_adapters()) adapters_->drop(step.trained, dropout_of(trained->adapter->config(), number));
  RETURN_IF_ERROR(on_cuda("training step", 0, [&]() -> Status {
    trained->tensors->clear_gradients();
    return ok();
  }));
  return step;
}

Status CudaLearner::run_pass(const MicroBatch& pass, std::span<const LearnedPart> parts) {
  return on_cuda("training step", pass.rows.num_rows(), [&]() -> Status {
    ASSIGN_OR_RETURN(const at::Tensor normed, pass_.forward(pass.rows));
    {
      const at::Tensor dnormed = at::zeros(normed.sizes(), normed.options().dtype(at::kFloat));
      head_.begin(pass.targets, parts);
      RETURN_IF_ERROR(head_.learn(normed, dnormed, pass_.scratch()));
      normed.copy_(dnormed);
    }
    ++micro_batch_;
    return pass_.backward();
  });
}

Result<TrainReport> CudaLearner::end_step(StepInProgress& step) {
  return on_cuda("training step", 0, [&] { return ended_step(step); });
}

Result<TrainReport> CudaLearner::ended_step(const StepInProgress& step) {
  TrainReport report = step.report;
  const Trained& trained = trained_[step.trained];
  report.num_micro_batches = static_cast<int32_t>(step.next);
  if (!debug_fault_.empty()) {
    report.skipped = true;
    report.skip_reason =
        fmt::format("{} (step {})", debug_fault_, trained.tensors->num_steps() + 1);
    if (!options_.debug.dump_folder.empty())
      RETURN_IF_ERROR(dump_.write(options_.debug.dump_folder));
    return report;
  }
  if (buffers_ != nullptr) buffers_->has_stepped();
  add_means(step.sums, report);
  RETURN_IF_ERROR(trained.tensors->update(trained.rules.optimizer, report));
  if (!has_adapters()) RETURN_IF_ERROR(fp8_.quantise_all(stream_));
  if (!options_.debug.dump_folder.empty()) RETURN_IF_ERROR(dump(trained));
  return report;
}

Result<std::shared_ptr<const WeightSnapshot>> CudaLearner::snapshot(TenantSlot tenant,
                                                                    PolicyVersion version) {
  using MadeSnapshot = Result<std::shared_ptr<const WeightSnapshot>>;
  ASSIGN_OR_RETURN(Trained* const trained, trained_of(tenant));
  return on_cuda("a copy of the weights", 0, [&]() -> MadeSnapshot {
    auto taken = std::make_shared<WeightSnapshot>();
    taken->version = version;
    if (buffers_ == nullptr) {
      taken->tensors = trained->tensors->copy_weights();
    } else if (auto buffer = buffers_->take()) {
      RETURN_IF_ERROR(whole_->publish(std::move(buffer), buffers_->next(), *taken));
    } else {
      taken->tensors = whole_->copy_published();
    }
    return std::shared_ptr<const WeightSnapshot>(std::move(taken));
  });
}

Result<std::vector<float>> CudaLearner::score(TenantSlot tenant,
                                              const std::vector<int32_t>& tokens) {
  ASSIGN_OR_RETURN(Trained* const trained, trained_of(tenant));
  ASSIGN_OR_RETURN(const TrainBatch batch, batch_to_score(tokens, limits()));
  const auto num_rows = static_cast<int64_t>(tokens.size());
  return on_cuda("scoring", num_rows, [&]() -> Result<std::vector<float>> {
    std::vector<float> logprobs;
    auto batches = pack(batch.samples, static_cast<int32_t>(num_rows));
    if (batches.empty()) return logprobs;
    for (auto& span : batches.front().rows.spans) span.adapter = slot_of(*trained);
    // A step of the tenant may be between two passes, and continues with its dropout.
    const auto slot = static_cast<size_t>(trained - trained_.data());
    const AdapterDropout before = has_adapters() ? adapters_->drop(slot, {}) : AdapterDropout();
    const auto ran = pass_.forward(batches.front().rows);
    if (has_adapters()) adapters_->drop(slot, before);
    ASSIGN_OR_RETURN(const at::Tensor normed, ran);
    head_.begin(batches.front().targets);
    RETURN_IF_ERROR(head_.score(normed, logprobs));
    return logprobs;
  });
}

Status CudaLearner::save(TenantSlot tenant, const std::filesystem::path& folder) {
  ASSIGN_OR_RETURN(Trained* const trained, trained_of(tenant));
  return on_cuda("saving a learner", 0, [&]() -> Status {
    auto tensors = trained->tensors->copy_weights();
    if (trained->adapter != nullptr) {
      RETURN_IF_ERROR(write_adapter_folder(folder / "weights", trained->adapter->config(), folder_,
                                           std::move(tensors)));
    } else {
      tensors.insert(tensors.end(), unused_.begin(), unused_.end());
      RETURN_IF_ERROR(write_model_folder(folder / "weights", model_, tensors));
    }
    RETURN_IF_ERROR(trained->tensors->save(folder / "learner"));
    return system_files().sync(folder);
  });
}

Status CudaLearner::load(TenantSlot tenant, const std::filesystem::path& folder) {
  ASSIGN_OR_RETURN(Trained* const trained, trained_of(tenant));
  const auto weights = folder / "weights";
  return on_cuda("loading a learner", 0, [&]() -> Status {
    std::vector<WeightTensor> tensors;
    if (trained->adapter != nullptr) {
      ASSIGN_OR_RETURN(auto read, read_adapter_folder(weights, model_.config));
      Status same = check_same_adapter(trained->adapter->config(), read.config);
      if (!same.ok()) return Error(same.error()).while_doing(weights.string());
      tensors = std::move(read.tensors);
    } else {
      ASSIGN_OR_RETURN(tensors, read_model_tensors(weights));
    }
    Status loaded = trained->tensors->load(tensors, folder / "learner");
    if (!loaded.ok()) return Error(loaded.error()).while_doing(folder.string());
    return fp8_.quantise_all(stream_);
  });
}

std::string CudaLearner::describe() const {
  const std::string where =
      fmt::format("{} in {}", options_.device, name_of(type_named(options_.dtype)));
  int64_t num_steps = 0, num_parameters = 0;
  for (const auto& trained : trained_) {
    num_steps += trained.tensors->num_steps();
    if (trained.adapter != nullptr) num_parameters += trained.adapter->tensors().num_parameters();
  }
  if (!has_adapters())
    return fmt::format("{} optimizer steps, {} parameters on {}{}", num_steps,
                       table_.num_parameters(), where,
                       buffers_ == nullptr ? "" : ", " + buffers_->text());
  return fmt::format(
      "{} optimizer steps, {} adapters of {} parameters on {} that are frozen, on {}", num_steps,
      trained_.size(), num_parameters, table_.num_parameters(), where);
}

std::vector<WeightTensor> CudaLearner::gradients(TenantSlot tenant) {
  const CudaStream::Use use(stream_);
  return trained_of(tenant).value()->tensors->copy_gradients();
}

}  // namespace primerl
