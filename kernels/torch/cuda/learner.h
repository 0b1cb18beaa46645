/// The Learner on one CUDA device: packs, runs a dense decoder forward and backward, clips, AdamW.
/// It trains the whole weights; a batch may be of any tenant. Adapters and mixtures are refused.
///
/// Computes in bf16 or fp32; masters, moments, gradients, logits and losses are fp32. Files and
/// snapshots are those of TorchLearner, so that a checkpoint goes on here or there. Numerics are
/// "fast": products are the vendor's. Until the update of a step nothing but gradients and scratch
/// memory changes. Where the environment has CUBLAS_WORKSPACE_CONFIG as libtorch asks for it, a
/// step is equal to the bit to the same step again; docs/design/cuda.md says what it is else. A
/// step beyond the device's memory is an error and leaves the learner as it was. One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/models/folder.h"
#include "kernels/torch/cuda/learner_head.h"
#include "kernels/torch/cuda/learner_pass.h"
#include "kernels/torch/training/step_dump.h"
#include "kernels/train/adapter_training.h"
#include "kernels/train/kept_batches.h"
#include "kernels/train/learner.h"
#include "kernels/train/packing.h"

namespace primerl {

class CudaLearner final : public Learner {
 public:
  /// As make_cuda_learner() does it, under a Use of `stream`, of which it keeps a copy.
  CudaLearner(const LearnerOptions& options, ModelFolder model, const CardStream& stream);
  ~CudaLearner() override;

  /// Fills the weights; the optimizer starts anew.
  Status fill(const std::vector<WeightTensor>& tensors);
  /// Random weights of a seed, as the model's config wants them.
  void randomize(uint64_t seed);

  using Learner::step;
  Result<TrainReport> step(const TrainBatch& batch, const StopRequested& stop_requested) override;
  SampleLimits limits() const override {
    return {model_.config.max_positions, model_.config.vocab_size};
  }
  std::string describe() const override;
  Result<std::shared_ptr<const WeightSnapshot>> snapshot(TenantSlot tenant,
                                                         PolicyVersion version) override;
  Result<std::vector<float>> score(TenantSlot tenant, const std::vector<int32_t>& tokens) override;
  Status save(TenantSlot tenant, const std::filesystem::path& folder) override;
  Status load(TenantSlot tenant, const std::filesystem::path& folder) override;

  /// The gradient of the last step before the clip: for tests.
  std::vector<WeightTensor> gradients();

 private:
  /// Runs `body` on the device; a lack of its memory becomes one error with what `rows` rows need.
  template <class Body>
  auto on_card(std::string_view doing, int64_t rows, Body&& body) -> decltype(body());
  Error out_of_memory(int64_t rows);
  Result<TrainReport> run_step(const TrainBatch& batch, std::vector<MicroBatch>& batches,
                               TrainReport report, const StopRequested& stop_requested);
  Status accumulate(const MicroBatch& batch, LossKind loss, double per_token, LossSums& sums);
  void look(const std::string& name, const at::Tensor& rows);
  void keep_batch(const TrainBatch& batch, int64_t step);
  Status dump();

  // Constant after construction.
  const LearnerOptions options_;
  const ModelFolder model_;
  const TrainingRules rules_;
  const TensorTable table_;
  const CardStream stream_;
  KeptBatches kept_batches_;
  bool has_warned_ = false;  // that one was not kept
  CardTrained trained_;
  /// Of layers that nothing here runs: written again as they were read.
  std::vector<WeightTensor> unused_;
  CardTrainingPass pass_;
  CardTrainingHead head_;
  // Of a step that is looked at.
  StepDump dump_;
  std::string broken_;  // the first activation that is not finite
  int32_t micro_batch_ = 0;
};

/// `options` were checked, `model` is supported; what a device cannot compute is refused by name.
/// `tensors` are the folder's, or nothing: then weights are random.
Result<std::unique_ptr<Learner>> make_cuda_learner(const LearnerOptions& options, ModelFolder model,
                                                   const std::vector<WeightTensor>* tensors);

}  // namespace primerl
