/// The Learner on libtorch: packs, runs the decoder forward and backward, AdamW in fp32. It trains
/// the whole weights, or adapters of several tenants on weights that are frozen.
///
/// Frozen weights may be those that engines of the process hold (frozen_weights.h). A step is
/// passes over micro-batches that add to one flat gradient, then clip and update; until
/// the update nothing but scratch memory changes, so leaving early needs no undoing. Of frozen
/// weights there are no gradients and no moments. Each adapter has its own, with its own schedule,
/// clip and count of steps: a step of one tenant touches nothing of another. Steps of several
/// adapters share passes of at most `micro_batch_tokens` rows: each brings its micro-batches, of
/// `adapter_batch_tokens`, as they are when it is alone. In line a step takes a pass at a time, so
/// that those of others come between; its gradient waits in its own adapter's memory. With
/// invariant numerics a step is equal to the bit on any number of compute threads, and beside any
/// others. One thread: the one that made it.
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

class TorchLearner final : public Learner, private StepRunner {
 public:
  /// Trains the whole weights; a batch may be of any tenant.
  TorchLearner(const LearnerOptions& options, ModelFolder model);
  /// Trains an adapter on `base` for each of `adapters`, which are valid and of different tenants.
  /// Loss, optimizer and schedule are theirs, not those of `options`. `base_folder` is that of
  /// `model` and of `base`, which is flat if numerics are fast.
  TorchLearner(const LearnerOptions& options, ModelFolder model, std::string base_folder,
               std::shared_ptr<const FrozenWeights> base,
               std::span<const AdapterTraining> adapters);

  /// Fills the whole weights, where they are trained; the optimizer starts anew.
  Status fill(const std::vector<WeightTensor>& tensors);
  /// Fills the adapter of `tenant` (adapter.h); its optimizer goes on.
  Status fill_adapter(TenantSlot tenant, const std::vector<WeightTensor>& tensors);

  /// Fills the adapter of its tenant from the folder that it starts from.
  Status start_from(const AdapterTraining& training);

  /// Random whole weights of a seed, as the model's config wants them.
  void randomize(uint64_t seed);

  using Learner::step;
  Result<TrainReport> step(const TrainBatch& batch, const StopRequested& stop_requested) override;
  std::vector<Result<TrainReport>> step_together(std::span<const TrainBatch* const> batches,
                                                 const StopRequested& stop_requested) override;
  /// Divides steps where several may share passes.
  std::vector<std::optional<Result<TrainReport>>> pass_together(
      std::span<const std::shared_ptr<const TrainBatch>> batches,
      const StopRequested& stop_requested) override;
  int64_t next_tokens(const TrainBatch& batch) const override;
  void discard(TenantSlot tenant) override { steps_.discard(tenant); }
  SampleLimits limits() const override {
    return {model_.config.max_positions, model_.config.vocab_size};
  }
  std::string describe() const override;

  /// Whole weights are any tenant's.
  Result<std::shared_ptr<const WeightSnapshot>> snapshot(TenantSlot tenant,
                                                         PolicyVersion version) override;
  Result<std::vector<float>> score(TenantSlot tenant, const std::vector<int32_t>& tokens) override;
  Status save(TenantSlot tenant, const std::filesystem::path& folder) override;
  Status load(TenantSlot tenant, const std::filesystem::path& folder) override;

  /// Shows the activations of every forward pass from now on.
  void visit(ActivationVisitor visitor) { pass_.visit(std::move(visitor)); }

  /// The gradient of the last step before the clip, of what is trained: for tests.
  std::vector<WeightTensor> gradients(TenantSlot tenant = TenantSlot(0));

 private:
  /// What one optimizer trains, of one tenant.
  struct Trained {
    TenantSlot tenant;
    TrainingRules rules;
    std::unique_ptr<AdapterWeights> adapter;  // null: the whole weights, of any tenant
    TrainedTensors tensors;
    AdapterDropout dropout = {};  // of the step that is under way
  };

  /// That of `tenant`.
  Result<Trained*> trained_of(TenantSlot tenant);
  /// Its adapter's slot in the decoder.
  int32_t slot_of(const Trained& trained) const;
  /// In the next pass of the decoder.
  void use_adapter(const Trained& trained, const AdapterDropout& dropout);
  Result<StepUnderWay> begin_step(const TrainBatch& batch) override;
  Status run_pass(const MicroBatch& pass, std::span<const LearnedPart> parts) override;
  Result<TrainReport> end_step(StepUnderWay& step) override;
  bool is_found_broken() const override { return !broken_.empty(); }
  bool shares_passes() const override;
  StepUnderWay begun_step(const TrainBatch& batch, Trained& trained);
  Result<TrainReport> ended_step(const StepUnderWay& step);
  void look_if_asked();
  std::vector<MicroBatch> micro_batches_of(const TrainBatch& batch) const;
  /// That a micro-batch is to have.
  int32_t micro_batch_tokens() const;
  /// Looks at activations, as the debug options want it.
  void look(const std::string& name, const at::Tensor& rows);
  void keep_batch(const TrainBatch& batch, int64_t step);
  Status dump(const Trained& trained);

  // Constant after construction.
  const LearnerOptions options_;
  const ModelFolder model_;
  const std::string base_folder_;  // of the model, where adapters are trained
  const TensorTable table_;
  KeptBatches kept_batches_;
  bool has_warned_ = false;  // that one was not kept
  // One of the two is null: whole weights that are trained, or frozen ones that others may hold.
  const std::unique_ptr<DecoderWeights> own_;
  const std::shared_ptr<const FrozenWeights> base_;
  /// Of layers that nothing here runs: written again as they were read.
  std::vector<WeightTensor> unused_;
  Decoder decoder_;
  TrainingPass pass_;
  TrainingHead head_;
  std::vector<Trained> trained_;  // an adapter's index is its slot in the decoder
  TenantSteps steps_{*this, options_.micro_batch_tokens};
  // Of a step that is looked at.
  StepDump dump_;
  std::string broken_;  // the first activation that is not finite
  int32_t micro_batch_ = 0;
  // Scratch.
  std::vector<float> dnormed_;  // [rows, hidden]
};

}  // namespace primerl
