/// The head of a training step on a CUDA device: log-probabilities, losses and their gradients,
/// only for tokens that have a loss.
///
/// In chunks, so that [loss tokens, vocab_size] never exists. Logits and softmax are fp32, as in
/// the engine. The loss functions run on the CPU (loss.h): each chunk's log-probabilities are
/// copied to the host, and one coefficient per token is copied back. If a token has a kept set, all
/// other logits are excluded first. For a token with the likeliest tokens of a teacher (top_k.h),
/// their log-probabilities and that of all others are copied to the host, and the gradients of
/// their logits are copied back. Adapters of the head add to the logits; in a chunk the rows of a
/// tenant are adjacent. One thread, under a CudaStream::Use.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "kernels/cuda/learner/adapters.h"
#include "kernels/cuda/learner/trained_weights.h"
#include "kernels/train/loss.h"
#include "kernels/train/packing.h"

namespace primerl {

class CudaTrainingHead {
 public:
  /// All arguments must stay valid while it exists but `parameters`, which are of `type`.
  /// `adapters`: null, or the adapters of the weights, which are then frozen.
  CudaTrainingHead(const ModelConfig& config, const CudaParameters& parameters, at::ScalarType type,
                   LearnerAdapters* adapters, const CudaStream& stream);

  /// Bytes of a chunk.
  static double bytes_needed(const ModelConfig& config, at::ScalarType type);

  /// Copies a batch's targets to the device; waits for earlier launches. Targets are sorted by
  /// temperature, since a chunk has one, and by tenant if adapters add to the head. Adapters must
  /// have begun the pass. `parts` are adjacent and cover all learned targets.
  void begin(std::span<const TrainTarget> targets, std::span<const LearnedPart> parts = {});
  /// For the batch of the last begin(), as TrainingHead::learn(); `dnormed` [rows, hidden] is fp32.
  /// `scratch`, bytes or undefined, is used if a chunk's logits fit into it.
  Status learn(const at::Tensor& normed, const at::Tensor& dnormed, const at::Tensor& scratch);
  /// For the batch of the last begin(), as TrainingHead::score().
  Status score(const at::Tensor& normed, std::vector<float>& logprobs);

 private:
  /// Targets [first, first + count), and the offsets at which begin() stored their data.
  struct Chunk {
    int64_t first = 0, count = 0;
    int64_t rows = 0, labels = 0;   // [count] each
    int64_t one_hot = 0;            // [count] labels whose gradient backward() adds or overwrites
    int64_t sums = 0, num_ids = 0;  // EmbeddingBackwardArgs of the rows
    LearnerAdapters::PickedRows picked = {};  // only if adapters add to the head
  };
  /// The likeliest tokens of a chunk's teachers, row after row, without those that the model lacks.
  struct TopK {
    std::vector<int64_t> at;    // index in the chunk's logits
    std::vector<size_t> first;  // [count + 1] where those of a row begin
    at::Tensor on_device;       // `at`
    at::Tensor gradients;       // [size of at] fp32 of the logits; on the host until backward()
  };
  /// The chunk's numbers on the host that learn() reads.
  struct HostNumbers {
    at::Tensor numbers;  // Logits::numbers
    at::Tensor top;      // [size of TopK::at] logits
    at::Tensor rests;    // [count] log normalizers without them
  };
  /// Results of a chunk on the device.
  struct Logits {
    at::Tensor picked;   // [count, hidden]
    at::Tensor logits;   // [count, vocab_size] fp32
    at::Tensor numbers;  // [3, count]: log-probabilities, entropies, log normalizers
  };

  void sort(std::span<const TrainTarget> targets, std::span<const LearnedPart> parts);
  std::span<const TrainTarget> targets_of(const Chunk& chunk) const {
    return std::span(targets_).subspan(static_cast<size_t>(chunk.first),
                                       static_cast<size_t>(chunk.count));
  }
  const int32_t* ints(int64_t offset) const { return ints_.const_data_ptr<int32_t>() + offset; }
  Result<Logits> logits_of(const Chunk& chunk, const at::Tensor& normed,
                           const at::Tensor& scratch) const;
  /// Excludes logits that were not kept.
  void cut(const Chunk& chunk, const at::Tensor& logits) const;
  Status softmax(const Chunk& chunk, const Logits& made) const;
  bool is_top_k(const Chunk& chunk, size_t i) const {
    return part_of_[static_cast<size_t>(chunk.first) + i]->loss == LossKind::kTopK;
  }
  /// Gathers the logits of a teacher's tokens and excludes them. The others keep their gradients:
  /// softmax_backward with the normalizer of all.
  Status exclude_top(const Chunk& chunk, const Logits& made, TopK& top, HostNumbers& to) const;
  /// The loss of target i of a chunk; sets its coefficient and the gradients of its teacher's
  /// tokens.
  TokenLoss learn_top_k(const Chunk& chunk, size_t i, const HostNumbers& numbers, TopK& top);
  /// Propagates the gradients of the logits, by `coefficients_` and `top`, to `dnormed`, and to the
  /// head's weights and adapters unless they are frozen.
  Status backward(const Chunk& chunk, const Logits& made, const TopK& top,
                  const at::Tensor& dnormed) const;

  const ModelConfig& config_;
  const CudaStream& stream_;
  const at::ScalarType type_;
  LearnerAdapters* const adapters_;
  CudaParameter head_;
  // For the current batch.
  std::vector<TrainTarget> targets_;
  std::vector<LearnedPart> parts_;
  std::vector<const LearnedPart*> part_of_;  // of each target
  std::vector<size_t> order_;                // of the sorted targets: their indices in begin()
  std::vector<Chunk> chunks_;
  at::Tensor ints_;
  at::Tensor coefficients_;  // of a chunk, pinned; read when the next chunk's results are there
};

}  // namespace primerl
