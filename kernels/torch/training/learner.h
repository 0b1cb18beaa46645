/// The Learner on libtorch: packs, runs the decoder forward and backward, AdamW in fp32.
///
/// A step is one pass over micro-batches that add to one flat gradient, then clip and update; until
/// the update nothing but scratch memory changes, so leaving early needs no undoing. With invariant
/// numerics a step is equal to the bit on any number of compute threads. One thread: the one that
/// made it.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kernels/models/folder.h"
#include "kernels/torch/training/head.h"
#include "kernels/torch/training/step_dump.h"
#include "kernels/torch/training/training_pass.h"
#include "kernels/train/kept_batches.h"
#include "kernels/train/learner.h"
#include "kernels/train/options.h"
#include "kernels/train/packing.h"

namespace primerl {

class TorchLearner final : public Learner {
 public:
  TorchLearner(const LearnerOptions& options, ModelFolder model);

  /// Fills the weights; the optimizer starts anew.
  Status fill(const std::vector<WeightTensor>& tensors);

  /// Random weights of a seed, as the model's config wants them.
  void randomize(uint64_t seed);

  using Learner::step;
  Result<TrainReport> step(const TrainBatch& batch, const StopRequested& stop_requested) override;
  Result<std::shared_ptr<const WeightSnapshot>> snapshot(PolicyVersion version) override;
  Result<std::vector<float>> score(const std::vector<int32_t>& tokens) override;
  Status save(const std::filesystem::path& folder) override;
  Status load(const std::filesystem::path& folder) override;
  SampleLimits limits() const override {
    return {model_.config.max_positions, model_.config.vocab_size};
  }
  std::string describe() const override;

  /// Shows the activations of every forward pass from now on.
  void visit(ActivationVisitor visitor) { pass_.visit(std::move(visitor)); }

  /// The gradient of the last step before the clip, of what is trained: for tests.
  std::vector<WeightTensor> gradients();

 private:
  void accumulate(const MicroBatch& batch, LossKind loss, double per_token, LossSums& sums);
  /// Looks at activations, as the debug options want it.
  void look(const std::string& name, const at::Tensor& rows);
  void keep_batch(const TrainBatch& batch);
  Status dump();
  /// The first tensor whose gradient is not finite, as "NAME (NaN at ...)".
  std::string broken_gradient();
  double gradient_norm();
  void update(TrainReport& report);

  // Constant after construction.
  const LearnerOptions options_;
  const ModelFolder model_;
  const TensorTable table_;
  KeptBatches kept_batches_;
  bool has_warned_ = false;  // that one was not kept
  // The model and its optimizer: [table.count()] each.
  DecoderWeights weights_;
  at::Tensor gradients_;
  at::Tensor first_moments_;
  at::Tensor second_moments_;
  int64_t num_steps_ = 0;  // optimizer steps done
  /// Of layers that nothing here runs: written again as they were read.
  std::vector<WeightTensor> unused_;
  Decoder decoder_;
  TrainingPass pass_;
  TrainingHead head_;
  // Of a step that is looked at.
  StepDump dump_;
  std::string broken_;  // the first activation that is not finite
  int32_t micro_batch_ = 0;
  // Scratch.
  std::vector<float> dnormed_;  // [rows, hidden]
  std::vector<double> squares_;
};

}  // namespace primerl
