/// The Learner on libtorch: packs, runs the decoder forward and backward, AdamW in fp32.
///
/// A step is one pass over micro-batches that add to one flat gradient, then clip and update; until
/// the update nothing but scratch memory changes, so leaving early needs no undoing. The head runs
/// on loss tokens only, in chunks, loss and gradient in one pass: [loss tokens, vocab_size] never
/// exists. A token with a kept set is learned by the softmax over the logits of those ids, in their
/// order, just as the Sampler computed it; the other logits have no gradient. One thread: the one
/// that made it.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/ops/ops.h"
#include "kernels/torch/model_folder.h"
#include "kernels/torch/models/decoder_gradient.h"
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

  /// The gradient of the last step before the clip, as named tensors: for tests.
  std::vector<WeightTensor> gradients();

 private:
  /// Sums over the loss tokens of a step.
  struct Sums {
    double loss = 0;
    double entropy = 0;
    double mismatch_kl = 0;
    double mismatch_kl_max = 0;
    int64_t masked = 0;
  };

  void accumulate(const MicroBatch& batch, LossKind loss, double per_token, Sums& sums);
  void head(std::span<const TrainTarget> targets, const at::Tensor& normed, LossKind loss,
            double per_token, Sums& sums);
  /// Adds a token's loss; its row of logits becomes their gradient.
  void learn_token(const TrainTarget& target, float* logits, LossKind loss, double per_token,
                   Sums& sums);
  /// Gathers rows of `normed` and makes their logits.
  at::Tensor chunk_logits(std::span<const int32_t> rows, const at::Tensor& normed);
  int64_t chunk_rows() const;
  void update(TrainReport& report);

  // Constant after construction.
  const LearnerOptions options_;
  const ModelFolder model_;
  const DecoderLayout layout_;
  const CpuOps& ops_;
  // The model and its optimizer.
  Decoder decoder_;
  DecoderGradient gradient_;
  at::Tensor first_moments_;  // [layout.count]
  at::Tensor second_moments_;
  int64_t num_steps_ = 0;  // optimizer steps done
  // Scratch.
  at::Tensor picked_;  // [chunk rows, hidden]
  at::Tensor dpicked_;
  at::Tensor logits_;   // [chunk rows, vocab_size]
  at::Tensor dnormed_;  // [rows, hidden]
  std::vector<int32_t> kept_ids_;
  std::vector<float> kept_logits_;
};

}  // namespace primerl
