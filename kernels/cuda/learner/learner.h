/// The Learner on one CUDA device: packs, runs a decoder forward and backward, clips, AdamW. It
/// trains whole weights, for any tenant, or adapters of several tenants on frozen weights.
///
/// Computes in bf16 or fp32; masters, moments, gradients, logits and losses are fp32. Files and the
/// tensors of snapshots are those of CpuLearner, so that a checkpoint continues on either device.
/// Numerics are "fast": GEMMs are the vendor's. Steps of several adapters share passes; other
/// tenants change only the last bits of a step's GEMMs. Before its update a step changes only
/// gradients and scratch memory. If CUBLAS_WORKSPACE_CONFIG is set as libtorch requires, a repeated
/// step is equal to the bit; docs/design/cuda.md describes the other case. A step beyond the
/// device's memory is an error and leaves the learner unchanged. One thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/common/step_dump.h"
#include "kernels/cuda/learner/adapters.h"
#include "kernels/cuda/learner/head.h"
#include "kernels/cuda/learner/training_pass.h"
#include "kernels/cuda/memory/frozen_base.h"
#include "kernels/cuda/memory/snapshot_buffers.h"
#include "kernels/engine/device_room.h"
#include "kernels/models/folder.h"
#include "kernels/train/adapter_training.h"
#include "kernels/train/kept_batches.h"
#include "kernels/train/learner.h"
#include "kernels/train/packing.h"
#include "kernels/train/tenant_steps.h"

namespace primerl {

class CudaLearner final : public Learner, private StepRunner {
 public:
  /// As called by make_cuda_learner(), under a Use of `stream`, of which it keeps a copy.
  CudaLearner(const LearnerOptions& options, ModelFolder model, const CudaStream& stream);
  /// Trains an adapter for each of `adapters`. They are valid, of different tenants, and supported
  /// by LearnerAdapters. `folder` is that of `model`, `base` its weights.
  CudaLearner(const LearnerOptions& options, ModelFolder model, std::string folder,
              std::shared_ptr<const CudaFrozenBase> base, std::span<const AdapterTraining> adapters,
              const CudaStream& stream);
  ~CudaLearner() override;

  /// Fills the weights and resets the optimizer. A base is filled already.
  Status fill(const std::vector<WeightTensor>& tensors);
  /// Fills the adapter of `tenant` (adapter.h); its optimizer state stays.
  Status fill_adapter(TenantSlot tenant, const std::vector<WeightTensor>& tensors);
  /// Fills the adapter of its tenant from its start folder.
  Status start_from(const AdapterTraining& training);
  /// Random weights from a seed and the model's config; likewise resets the optimizer.
  Status randomize(uint64_t seed);

  using Learner::step;
  Result<TrainReport> step(const TrainBatch& batch, const StopRequested& stop_requested) override {
    return steps_.step(batch, stop_requested);
  }
  std::vector<Result<TrainReport>> step_together(std::span<const TrainBatch* const> batches,
                                                 const StopRequested& stop_requested) override;
  /// Divides steps if several may share passes.
  std::vector<std::optional<Result<TrainReport>>> pass_together(
      std::span<const std::shared_ptr<const TrainBatch>> batches,
      const StopRequested& stop_requested) override;
  int64_t next_tokens(const TrainBatch& batch) const override;
  void discard(TenantSlot tenant) override { steps_.discard(tenant); }
  SampleLimits limits() const override {
    return {model_.config.max_positions, model_.config.vocab_size};
  }
  std::string describe() const override;
  Result<std::shared_ptr<const WeightSnapshot>> snapshot(TenantSlot tenant,
                                                         PolicyVersion version) override;
  Result<std::vector<float>> score(TenantSlot tenant, const std::vector<int32_t>& tokens) override;
  Status save(TenantSlot tenant, const std::filesystem::path& folder) override;
  Status load(TenantSlot tenant, const std::filesystem::path& folder) override;

  /// For tests: the gradient of the last step, before the clip, of the trained tensors.
  std::vector<WeightTensor> gradients(TenantSlot tenant = TenantSlot(0));

 private:
  /// The weights that one optimizer trains, of one tenant.
  struct Trained {
    TenantSlot tenant;
    TrainingRules rules;
    CudaTrainedWeights* tensors = nullptr;
    const AdapterTable* adapter = nullptr;  // null: whole weights, of any tenant
  };

  bool has_adapters() const { return adapters_ != nullptr; }
  /// The entry of `tenant`.
  Result<Trained*> trained_of(TenantSlot tenant);
  int32_t slot_of(const Trained& trained) const;
  CudaParameter parameter(std::string_view name) const;
  /// Fills the router biases of a base.
  Status fill_biases(const std::vector<WeightTensor>& tensors);
  CudaParameter with_codes(std::string_view name);
  /// Runs `body` on the device; if device memory is short, the error says what `rows` rows need.
  template <class Body>
  auto on_cuda(std::string_view doing, int64_t rows, Body&& body) -> decltype(body());
  Error out_of_memory(int64_t rows);
  Result<StepInProgress> begin_step(const TrainBatch& batch) override;
  Status run_pass(const MicroBatch& pass, std::span<const LearnedPart> parts) override;
  Result<TrainReport> end_step(StepInProgress& step) override;
  bool has_debug_fault() const override { return !debug_fault_.empty(); }
  bool shares_passes() const override;
  Result<TrainReport> ended_step(const StepInProgress& step);
  void look(const std::string& name, const at::Tensor& rows);
  void keep_batch(const TrainBatch& batch, int64_t step);
  Status dump(const Trained& trained);

  // Constant after construction.
  const LearnerOptions options_;
  const ModelFolder model_;
  const std::string folder_;  // the model's folder, if adapters are trained
  const std::vector<AdapterTraining> training_;
  const TensorTable table_;
  const CudaStream stream_;
  KeptBatches kept_batches_;
  bool has_warned_ = false;  // a warning was logged about a batch that was not kept
  // Exactly one of these: whole weights, or adapters on a frozen base.
  std::unique_ptr<CudaTrainedWeights> whole_;
  const std::shared_ptr<const CudaFrozenBase> base_;
  /// The base's router biases in fp32, since bf16 rounds them. They are not trained.
  const at::Tensor untrained_;
  std::unique_ptr<LearnerAdapters> adapters_;
  std::vector<Trained> trained_;  // an adapter's index is its slot
  /// Buffers of snapshots. Null for adapters, which are small, and for mixtures with biases of
  /// expert choice, which must stay exact.
  std::unique_ptr<SnapshotBuffers> buffers_;
  /// Tensors of layers that this learner does not run; saved as they were read.
  std::vector<WeightTensor> unused_;
  Fp8Weights fp8_;  // of the layers' matrices, or none
  CudaTrainingPass pass_;
  CudaTrainingHead head_;
  TenantSteps steps_{*this, options_.micro_batch_tokens};
  // For a step with debug options.
  StepDump dump_;
  std::string debug_fault_;  // the first activation that is not finite
  int32_t micro_batch_ = 0;
};

/// The bytes that make_cuda_learner() compares with the free memory.
DeviceBytes cuda_learner_bytes(const LearnerOptions& options, const ModelConfig& config,
                               std::span<const AdapterTraining> adapters);

/// `options` and `adapters` were checked, `model` is supported; the error names anything that a
/// device cannot compute. `tensors` are those of the folder `base`, or empty: then weights are
/// random. Without `adapters` it trains whole weights; with them, the frozen weights are in
/// `bases`, which may be null.
Result<std::unique_ptr<Learner>> make_cuda_learner(const LearnerOptions& options, ModelFolder model,
                                                   const std::vector<WeightTensor>* tensors,
                                                   const std::string& base,
                                                   std::span<const AdapterTraining> adapters,
                                                   FrozenBases* bases);

}  // namespace primerl
