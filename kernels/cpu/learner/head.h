/// The head of a training step: log-probabilities, losses and their gradients, only for tokens that
/// have a loss.
///
/// In chunks, loss and gradient in one pass: [loss tokens, vocab_size] never exists. The targets of
/// a step are divided alike whatever else is in the pass, and a chunk has whole pieces of several
/// steps: so the gradient of an adapter of the head is added in one order. A token with
/// a kept set uses the softmax over the logits of those ids, in their order, exactly as in the
/// Sampler; other logits have no gradient. One thread calls and divides tokens over its compute
/// threads; sums are added in the order of the tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/stages/decoder.h"
#include "kernels/train/loss.h"
#include "kernels/train/packing.h"

namespace primerl {

class TrainingHead {
 public:
  explicit TrainingHead(Decoder& decoder) : decoder_(decoder) {}

  /// Adds the losses of `targets` to the sums of their part, the gradient of the head's weights to
  /// their buffer, if one is bound, and the gradient of the rows of `normed` [rows, hidden] to
  /// `dnormed`. The parts are adjacent and cover all targets.
  void learn(std::span<const TrainTarget> targets, std::span<const LearnedPart> parts,
             const float* normed, float* dnormed);
  /// Appends the log-probability of each target's label, with the bits that learn() computes.
  void score(std::span<const TrainTarget> targets, const float* normed,
             std::vector<float>& logprobs);

 private:
  struct Learned {
    TokenLoss token;
    float log_pi = 0;
    float entropy = 0;
  };
  struct KeptLogits {
    std::vector<int32_t> ids;
    std::vector<float> logits;
    // The teacher's tokens (top_k.h).
    std::vector<int32_t> top_ids;
    std::vector<float> teacher;
    std::vector<double> learner, gradients;
  };

  /// The logits that a token's softmax reads.
  struct ReadLogits {
    float* row = nullptr;
    int64_t size = 0;
    int32_t label = 0;  // index in `row`
  };

  /// Targets of the next chunk: the first of `targets`, which belong to `part_of`.
  size_t chunk_size(std::span<const TrainTarget> targets,
                    std::span<const LearnedPart* const> part_of) const;
  int64_t chunk_rows() const;
  ReadLogits read_logits(const TrainTarget& target, float* logits, KeptLogits& kept) const;
  /// Gathers the rows of `targets` and computes their logits.
  float* make_logits(std::span<const TrainTarget> targets, const float* normed);
  /// The loss of a token; its row of logits becomes their gradient.
  Learned learn_token(const TrainTarget& target, float* logits, const LearnedPart& part,
                      KeptLogits& kept) const;

  /// The same for a target with the likeliest tokens of a teacher.
  Learned learn_top_k(const TrainTarget& target, float* logits, const LearnedPart& part,
                      KeptLogits& kept) const;

  Decoder& decoder_;
  // Scratch.
  std::vector<int32_t> rows_;                // [chunk rows], of the step
  std::vector<float> picked_;                // [chunk rows, hidden]
  std::vector<float> dpicked_;               // [chunk rows, hidden]
  at::Tensor logits_;                        // [chunk rows * vocab_size]
  std::vector<const LearnedPart*> part_of_;  // by target
  std::vector<Learned> learned_;
  std::vector<KeptLogits> kept_;  // one per thread
};

}  // namespace primerl
