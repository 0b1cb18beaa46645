/// The Learner on libtorch: packs, runs the decoder forward and backward, AdamW in fp32. It trains
/// whole weights, or adapters of several tenants on frozen weights.
///
/// Engines of the process may share the frozen weights (frozen_weights.h). A step is passes over
/// micro-batches that add to one flat gradient, then clip and update. Before the update only
/// scratch memory changes, so a step can stop at any time. Frozen weights have no gradients and no
/// moments. Each adapter has its own, with its own schedule, clip and step count: a step of one
/// tenant changes nothing of another. Steps of several adapters share passes of at most
/// `micro_batch_tokens` rows. Each adds its micro-batches, of `adapter_batch_tokens`, the same as
/// when it runs alone. A queued step runs one pass at a time, so that passes of other steps can run
/// between; its gradient stays in its adapter's memory. With invariant numerics a step has the same
/// bits for any number of compute threads, and beside any other steps. One thread: the one that
/// made it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/common/step_dump.h"
#include "kernels/cpu/learner/head.h"
#include "kernels/cpu/learner/trained_tensors.h"
#include "kernels/cpu/learner/training_pass.h"
#include "kernels/cpu/weights/frozen_weights.h"
#include "kernels/models/folder.h"
#include "kernels/train/adapter_training.h"
#include "kernels/train/kept_batches.h"
#include "kernels/train/learner.h"
#include "kernels/train/options.h"
#include "kernels/train/packing.h"
#include "kernels/train/tenant_steps.h"

namespace primerl {

class CpuLearner final : public Learner, private StepRunner {
 public:
  /// Trains whole weights; a batch may be of any tenant.
  CpuLearner(const LearnerOptions& options, ModelFolder model);
  /// Trains an adapter on `base` for each of `adapters`, which are valid and of different tenants.
  /// Each has its own loss, optimizer and schedule; those of `options` are ignored. `base_folder`
  /// is that of `model` and of `base`, which is flat if numerics are fast.
  CpuLearner(const LearnerOptions& options, ModelFolder model, std::string base_folder,
             std::shared_ptr<const FrozenWeights> base, std::span<const AdapterTraining> adapters);

  /// Fills whole weights, if they are trained, and resets the optimizer.
  Status fill(const std::vector<WeightTensor>& tensors);
  /// Fills the adapter of `tenant` (adapter.h); its optimizer state stays.
  Status fill_adapter(TenantSlot tenant, const std::vector<WeightTensor>& tensors);

  /// Fills the adapter of its tenant from its start folder.
  Status start_from(const AdapterTraining& training);

  /// Random whole weights from a seed and the model's config.
  void randomize(uint64_t seed);

  using Learner::step;
  Result<TrainReport> step(const TrainBatch& batch, const StopRequested& stop_requested) override;
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

  /// Whole weights are the same for every tenant.
  Result<std::shared_ptr<const WeightSnapshot>> snapshot(TenantSlot tenant,
                                                         PolicyVersion version) override;
  Result<std::vector<float>> score(TenantSlot tenant, const std::vector<int32_t>& tokens) override;
  Status save(TenantSlot tenant, const std::filesystem::path& folder) override;
  Status load(TenantSlot tenant, const std::filesystem::path& folder) override;

  /// Sets a function that gets the activations of every later forward pass.
  void visit(ActivationVisitor visitor) { pass_.visit(std::move(visitor)); }

  /// For tests: the gradient of the last step, before the clip, of the trained tensors.
  std::vector<WeightTensor> gradients(TenantSlot tenant = TenantSlot(0));

 private:
  /// The weights that one optimizer trains, of one tenant.
  struct Trained {
    TenantSlot tenant;
    TrainingRules rules;
    std::unique_ptr<AdapterWeights> adapter;  // null: whole weights, of any tenant
    TrainedTensors tensors;
    AdapterDropout dropout = {};  // of the step in progress
  };

  /// The entry of `tenant`.
  Result<Trained*> trained_of(TenantSlot tenant);
  /// The adapter's slot in the decoder.
  int32_t slot_of(const Trained& trained) const;
  /// Sets the adapter for the next pass of the decoder.
  void use_adapter(const Trained& trained, const AdapterDropout& dropout);
  Result<StepInProgress> begin_step(const TrainBatch& batch) override;
  Status run_pass(const MicroBatch& pass, std::span<const LearnedPart> parts) override;
  Result<TrainReport> end_step(StepInProgress& step) override;
  bool has_debug_fault() const override { return !debug_fault_.empty(); }
  bool shares_passes() const override;
  StepInProgress begun_step(const TrainBatch& batch, Trained& trained);
  Result<TrainReport> ended_step(const StepInProgress& step);
  void look_if_asked();
  std::vector<MicroBatch> micro_batches_of(const TrainBatch& batch) const;
  /// The wanted size of a micro-batch.
  int32_t micro_batch_tokens() const;
  /// Checks or records activations for the debug options.
  void look(const std::string& name, const at::Tensor& rows);
  void keep_batch(const TrainBatch& batch, int64_t step);
  Status dump(const Trained& trained);

  // Constant after construction.
  const LearnerOptions options_;
  const ModelFolder model_;
  const std::string base_folder_;  // the model's folder, if adapters are trained
  const TensorTable table_;
  KeptBatches kept_batches_;
  bool has_warned_ = false;  // a warning was logged about a batch that was not kept
  // Exactly one is set: whole weights that are trained, or frozen ones that may be shared.
  const std::unique_ptr<DecoderWeights> own_;
  const std::shared_ptr<const FrozenWeights> base_;
  /// Tensors of layers that are not run here; saved as they were read.
  std::vector<WeightTensor> unused_;
  Decoder decoder_;
  TrainingPass pass_;
  TrainingHead head_;
  std::vector<Trained> trained_;  // by adapter slot in the decoder
  TenantSteps steps_{*this, options_.micro_batch_tokens};
  // For a step with debug options.
  StepDump dump_;
  std::string debug_fault_;  // the first activation that is not finite
  int32_t micro_batch_ = 0;
  // Scratch.
  std::vector<float> dnormed_;  // [rows, hidden]
};

}  // namespace primerl
