#include "kernels/cuda/learner/learner.h"

#include <ATen/Context.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <utility>

#include "kernels/common/boundary.h"
#include "kernels/common/flops.h"
#include "kernels/common/memory.h"
#include "kernels/common/step_report.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/learner/adapters.h"
#include "kernels/cuda/learner/head.h"
#include "kernels/cuda/learner/learner_memory.h"
#include "kernels/cuda/learner/training_pass.h"
#include "kernels/cuda/memory/snapshot_buffers.h"

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

class CudaBackend final : public LearnerBackend {
 public:
  CudaBackend(const LearnerOptions& options, ModelFolder model,
              std::shared_ptr<const CudaFrozenBase> base, std::span<const AdapterTraining> adapters,
              const CudaStream& stream);
  /// Launched operations may still read memory that is freed here.
  ~CudaBackend() override { static_cast<void>(stream_.wait()); }

  Status run(std::string_view doing, int64_t rows, const std::function<Status()>& body) override;
  const ModelFolder& model() const override { return model_; }
  const TensorTable& table() const override { return table_; }
  const AdapterTable* adapter(size_t slot) const override {
    return has_adapters() && !adapters_->is_free(slot) ? &adapters_->table(slot) : nullptr;
  }
  int64_t num_steps(size_t slot) const override { return trained_[slot]->num_steps(); }
  bool can_share_passes() const override { return has_adapters(); }
  double peak_flops() const override { return peak_flops_; }
  std::string device_text() const override {
    return fmt::format("{} in {}{}", options_.device, name_of(type_named(options_.dtype)),
                       buffers_ == nullptr ? "" : ", " + buffers_->text());
  }
  void visit(ActivationVisitor visitor) override { pass_.visit(std::move(visitor)); }

  Status fill(const std::vector<WeightTensor>& tensors) override;
  /// Router biases are then 0.
  Status randomize(uint64_t seed) override {
    if (whole_ != nullptr) whole_->randomize(seed, model_.config.initializer_range);
    return fp8_.quantise_all(stream_);
  }
  Status fill_adapter(size_t slot, const std::vector<WeightTensor>& tensors) override {
    return trained_[slot]->fill(tensors);
  }
  Status begin_tenant(size_t slot, const AdapterTraining& training) override;
  void end_tenant(size_t slot) override;
  Status begin(size_t slot, const AdapterDropout& dropout) override {
    if (has_adapters()) adapters_->drop(slot, dropout);
    trained_[slot]->clear_gradients();
    return ok();
  }
  Status pass(const MicroBatch& pass, std::span<const LearnedPart> parts) override;
  Status update(size_t slot, const AdamNumbers* adam, TrainReport& report) override;
  Result<std::vector<double>> gradient_squares() override { return whole_->gradient_squares(); }
  Status snapshot(size_t slot, WeightSnapshot& snapshot) override;
  Result<std::vector<float>> score(size_t slot, const MicroBatch& batch) override;
  Result<std::vector<float>> measure(size_t slot, const MicroBatch& batch,
                                     bool is_of_reference) override;
  std::vector<WeightTensor> weights(size_t slot) override { return trained_[slot]->copy_weights(); }
  std::vector<WeightTensor> gradients(size_t slot) override {
    return trained_[slot]->copy_gradients();
  }
  Result<LearnerCopy> capture(size_t slot) override { return trained_[slot]->capture(); }
  Status load(size_t slot, const std::vector<WeightTensor>& tensors,
              const std::filesystem::path& folder) override {
    RETURN_IF_ERROR(trained_[slot]->load(tensors, folder));
    return fp8_.quantise_all(stream_);
  }

 private:
  bool has_adapters() const { return adapters_ != nullptr; }
  CudaParameter parameter(std::string_view name) const;
  CudaParameter with_codes(std::string_view name);
  /// Fills the router biases of a base.
  Status fill_biases(const std::vector<WeightTensor>& tensors);
  Error out_of_memory(int64_t rows);

  // Constant after construction.
  const LearnerOptions options_;
  const ModelFolder model_;
  const std::vector<AdapterTraining> training_;
  const TensorTable table_;
  const CudaStream stream_;
  // Exactly one of these: whole weights, or adapters on a frozen base.
  std::unique_ptr<CudaTrainedWeights> whole_;
  const std::shared_ptr<const CudaFrozenBase> base_;
  /// The base's router biases in fp32, since bf16 rounds them. They are not trained.
  const at::Tensor untrained_;
  std::unique_ptr<LearnerAdapters> adapters_;
  std::vector<CudaTrainedWeights*> trained_;  // by slot; null: it is free
  /// Buffers of snapshots. Null for adapters, which are small, and for mixtures with biases of
  /// expert choice, which must stay exact.
  std::unique_ptr<SnapshotBuffers> buffers_;
  Fp8Weights fp8_;  // of the layers' matrices, or none
  CudaTrainingPass pass_;
  CudaTrainingHead head_;
  double peak_flops_ = 0;  // in bf16; 0: not known, or fp32
};

CudaBackend::CudaBackend(const LearnerOptions& options, ModelFolder model,
                         std::shared_ptr<const CudaFrozenBase> base,
                         std::span<const AdapterTraining> adapters, const CudaStream& stream)
    : options_(options),
      model_(std::move(model)),
      training_(adapters.begin(), adapters.end()),
      table_(model_.config),
      stream_(stream),
      whole_(adapters.empty() ? std::make_unique<CudaTrainedWeights>(
                                    table_, type_named(options.dtype), options.optimizer, stream_)
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
          type_named(options.dtype), adapters_.get(), stream_) {
  if (const auto facts = cuda_device_facts(cuda_device_index(options_.device));
      facts.ok() && type_named(options_.dtype) == at::kBFloat16)
    peak_flops_ = known_peak_flops(facts->name);
  if (whole_ != nullptr) trained_.push_back(whole_.get());
  for (size_t slot = 0; slot < training_.size(); ++slot)
    trained_.push_back(adapters_->is_free(slot) ? nullptr : &adapters_->trained(slot));
  if (whole_ == nullptr || has_selection_biases(table_)) return;
  const LearnerBytes bytes =
      learner_bytes(options_, model_.config, {}, options_.micro_batch_tokens);
  buffers_ = std::make_unique<SnapshotBuffers>(stream_.device().index(), whole_->published_bytes(),
                                               options_.device_snapshots, kLearnerReserveBytes,
                                               bytes.rows + bytes.head);
}

Status CudaBackend::begin_tenant(size_t slot, const AdapterTraining& training) {
  adapters_->begin(slot, table_, training);
  trained_[slot] = &adapters_->trained(slot);
  return stream_.wait();
}

/// Launched operations may still read its memory.
void CudaBackend::end_tenant(size_t slot) {
  static_cast<void>(stream_.wait());
  trained_[slot] = nullptr;
  adapters_->end(slot);
}

CudaParameter CudaBackend::parameter(std::string_view name) const {
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
CudaParameter CudaBackend::with_codes(std::string_view name) {
  CudaParameter found = parameter(name);
  const Parameter* parameter = options_.products == "fp8" ? table_.find(name) : nullptr;
  if (parameter == nullptr) return found;
  const Fp8Use use = fp8_use(*parameter);
  if (use == Fp8Use::kCodes) found.fp8 = fp8_.add(found.weight, true);
  if (use == Fp8Use::kExperts) found.experts = fp8_.add_experts(found.weight, true);
  if (use == Fp8Use::kRounded) found.rounded = fp8_.add_rounded(found.weight);
  return found;
}

Error CudaBackend::out_of_memory(int64_t rows) {
  pass_.release();
  if (buffers_ != nullptr) buffers_->release_free();
  if (has_adapters()) adapters_->release();
  release_kept_memory();
  const auto facts = cuda_device_facts(cuda_device_index(options_.device));
  return too_large(options_, training_, learner_bytes(options_, model_.config, training_, rows),
                   rows, facts.ok() ? *facts : CudaDeviceFacts{});
}

Status CudaBackend::run(std::string_view doing, int64_t rows, const std::function<Status()>& body) {
  bool is_full = false;
  Status result = at_boundary(doing, [&]() -> Status {
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
  for (const CudaTrainedWeights* trained : trained_)
    num_steps += trained == nullptr ? 0 : trained->num_steps();
  RETURN_IF_ERROR(
      stream_.check_device(fmt::format("{} (after {} training steps)", doing, num_steps)));
  return result;
}

Status CudaBackend::fill(const std::vector<WeightTensor>& tensors) {
  const CudaStream::Use use(stream_);
  RETURN_IF_ERROR(whole_ != nullptr ? whole_->fill(tensors) : fill_biases(tensors));
  return fp8_.quantise_all(stream_);
}

Status CudaBackend::fill_biases(const std::vector<WeightTensor>& tensors) {
  const at::Tensor host = zero_floats(untrained_.numel());
  RETURN_IF_ERROR(fill_untrained(table_, tensors, host.mutable_data_ptr<float>()));
  untrained_.copy_(host);
  return stream_.wait();
}

Status CudaBackend::pass(const MicroBatch& pass, std::span<const LearnedPart> parts) {
  ASSIGN_OR_RETURN(const at::Tensor normed, pass_.forward(pass.rows));
  {
    const at::Tensor dnormed = at::zeros(normed.sizes(), normed.options().dtype(at::kFloat));
    head_.begin(pass.targets, parts);
    RETURN_IF_ERROR(head_.learn(normed, dnormed, pass_.scratch()));
    normed.copy_(dnormed);
  }
  return pass_.backward();
}

Status CudaBackend::update(size_t slot, const AdamNumbers* adam, TrainReport& report) {
  if (buffers_ != nullptr) buffers_->has_stepped();
  RETURN_IF_ERROR(trained_[slot]->update(report, adam));
  return has_adapters() ? ok() : fp8_.quantise_all(stream_);
}

Status CudaBackend::snapshot(size_t slot, WeightSnapshot& snapshot) {
  if (has_adapters())
    snapshot.tensors = trained_[slot]->copy_adapter();
  else if (buffers_ == nullptr)
    snapshot.tensors = trained_[slot]->copy_weights();
  else if (auto buffer = buffers_->take())
    return whole_->publish(std::move(buffer), buffers_->next(), snapshot);
  else
    snapshot.tensors = whole_->copy_published();
  return ok();
}

Result<std::vector<float>> CudaBackend::score(size_t slot, const MicroBatch& batch) {
  // A step of the tenant may be between two passes, and continues with its dropout; so do open
  // gradients after a forward pass that throws, for example without memory.
  struct Restored {
    LearnerAdapters* const adapters;
    const size_t slot;
    const AdapterDropout dropout;
    ~Restored() {
      if (adapters != nullptr) adapters->drop(slot, dropout);
    }
  };
  const Restored restored{adapters_.get(), slot,
                          has_adapters() ? adapters_->drop(slot, {}) : AdapterDropout()};
  ASSIGN_OR_RETURN(const at::Tensor normed, pass_.forward(batch.rows));
  head_.begin(batch.targets);
  std::vector<float> logprobs;
  RETURN_IF_ERROR(head_.score(normed, logprobs));
  return logprobs;
}

Result<std::vector<float>> CudaBackend::measure(size_t slot, const MicroBatch& batch,
                                                bool is_of_reference) {
  if (is_of_reference && !has_adapters()) return no_reference();
  if (!is_of_reference) {
    ASSIGN_OR_RETURN(const at::Tensor normed, pass_.forward(batch.rows));
    head_.begin(batch.targets);
    std::vector<float> logprobs;
    RETURN_IF_ERROR(head_.score(normed, logprobs));
    return logprobs;
  }
  // An adapter that is scaled by 0 adds exactly 0. The pass may throw, for example without memory.
  struct Restored {
    LearnerAdapters& adapters;
    const size_t slot;
    const float scaling;
    ~Restored() { adapters.scale(slot, scaling); }
  };
  const Restored restored{*adapters_, slot, adapters_->scale(slot, 0)};
  return score(slot, batch);
}

}  // namespace

CudaLearner::CudaLearner(const LearnerOptions& options, ModelFolder model, const CudaStream& stream)
    : CudaLearner(options, std::move(model), {}, nullptr, {}, stream) {}

CudaLearner::CudaLearner(const LearnerOptions& options, ModelFolder model, std::string folder,
                         std::shared_ptr<const CudaFrozenBase> base,
                         std::span<const AdapterTraining> adapters, const CudaStream& stream)
    : LearnerCore(options,
                  std::make_unique<CudaBackend>(options, std::move(model), std::move(base),
                                                adapters, stream),
                  std::move(folder), adapters) {}

}  // namespace primerl
