/// Forward and backward of a decoder over one micro-batch on a CUDA device: an explicit layer
/// executor, no autograd graph.
///
/// Keeps each layer's input, and the activations that `recompute` selects (training_pass.h). Rows
/// are allocated for the largest micro-batch so far, gradients only while they are needed.
/// Recomputed activations have equal bits. One thread, under a CudaStream::Use; only copies of a
/// batch to the device wait for it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/common/step_dump.h"
#include "kernels/common/step_report.h"
#include "kernels/cuda/learner/adapters.h"
#include "kernels/cuda/learner/attention.h"
#include "kernels/cuda/learner/mixture.h"
#include "kernels/cuda/learner/trained_weights.h"

namespace primerl {

/// Columns of a layer's queries, and of its keys.
inline int64_t query_columns(const ModelConfig& config) {
  return int64_t{config.attention.num_heads} * config.attention.head_dim;
}
inline int64_t key_columns(const ModelConfig& config) {
  return int64_t{config.attention.num_kv_heads} * config.attention.head_dim;
}
inline bool is_mixture_layer(const ModelConfig& config, size_t layer) {
  return std::holds_alternative<MoeSpec>(config.layers[layer].stages.back());
}

class CudaTrainingPass {
 public:
  /// All arguments must stay valid while it exists except `parameters`, which are of `type`.
  /// `adapters`: null, or the adapters of the weights, which are then frozen.
  CudaTrainingPass(const ModelConfig& config, const CudaParameters& parameters, at::ScalarType type,
                   LearnerAdapters* adapters, const CudaStream& stream, Recompute recompute,
                   bool is_repeatable);

  /// Bytes of `rows` rows, gradients and the allocations of attention.
  static double bytes_needed(const ModelConfig& config, at::ScalarType type, Recompute recompute,
                             int64_t rows);

  /// Sets a function that every later forward() calls with tensors of the device; null: no calls.
  void visit(ActivationVisitor visitor) { visitor_ = std::move(visitor); }

  /// Runs the layers and the final norm; the result [rows, hidden] is valid until the next call.
  Result<at::Tensor> forward(const RowBatch& batch);
  /// Adds the gradients of the batch of the last forward(). Before, the caller has overwritten the
  /// result of forward() with its gradient.
  Status backward();

  /// Bytes that are unused between forward() and backward(); undefined: none.
  at::Tensor scratch() const { return shared_; }

  /// Frees all rows: after a failure, and before a larger batch.
  void release();

 private:
  struct Layer {
    CudaParameter attention_norm, mlp_norm, q_norm, k_norm;
    CudaParameter qkv, qkv_bias, out, out_bias, gate_up, gate_up_bias, down, down_bias;
    bool is_mixture = false;
    CudaTrainingMixture::Weights mixture;
  };
  /// Rows of one layer; shared between layers if they are recomputed.
  struct Rows {
    at::Tensor normed, inverse_rms, qkv, q, keys, attended;
    at::Tensor between, mlp_normed, mlp_inverse_rms, gate_up, activated;
  };
  struct LayerRows {
    at::Tensor input;  // [rows, hidden]
    Rows rows;
    TrainingAttention::KeptParts kept;
    CudaTrainingMixture::Rows mixture;
  };
  enum class Run : uint8_t { kForward, kAgain, kAgainWithoutAttention };

  void grow(int64_t rows);
  at::Tensor block(int64_t width) const;
  at::Tensor floats() const;
  /// [capacity, width] in the memory of `rows`, which is no longer used then, or in new memory.
  at::Tensor reused_rows(const at::Tensor& rows, int64_t width) const;
  /// Allocates rows separately, or one after the other in `bytes`, without the output of attention.
  Rows make_rows(bool is_mixture) const;
  Rows make_rows_in(const at::Tensor& bytes) const;
  int64_t shared_bytes() const;
  int64_t bytes_of_block(int64_t width) const;
  /// The rows and widths of both kinds, except the output of attention and the statistics of norms.
  std::vector<std::pair<at::Tensor*, int64_t>> widths_of(Rows& rows, int64_t mlp_width) const;
  int64_t dense_width() const;
  Layer layer_of(int32_t index, const CudaParameters& parameters) const;
  Status begin(const RowBatch& batch);
  void make_angles(int64_t positions);
  cuda::Type type() const;
  at::Tensor some(const at::Tensor& rows) const { return rows.narrow(0, 0, num_rows_); }

  /// sum = x + delta; y = norm(sum). Without `delta` the sum is x.
  Status norm(const at::Tensor& x, const at::Tensor& delta, const CudaParameter& weight,
              const at::Tensor& sum, const at::Tensor& y, const at::Tensor& inverse_rms) const;
  /// gradient += the gradient of the norm's input.
  Status norm_backward(const at::Tensor& dy, const at::Tensor& x, const CudaParameter& weight,
                       const at::Tensor& inverse_rms, const at::Tensor& grad, bool adds) const;
  void gemm(const at::Tensor& x, const CudaParameter& weight, const CudaParameter& bias,
            const at::Tensor& y) const;
  /// dx = dy * weight; adds the gradients of weight and bias unless they are frozen.
  void gemm_backward(const at::Tensor& x, const at::Tensor& dy, const CudaParameter& weight,
                     const CudaParameter& bias, const at::Tensor& dx) const;
  Status rotate(const Layer& layer, const Rows& rows) const;
  AttentionRows attention_rows(const Rows& rows) const;
  /// Reads `x` (+ addend_ in kForward), writes rows.between and addend_.
  Status attention_stage(size_t index, Run run);
  Status mlp_stage(size_t index, Run run);
  Status mixture_stage(size_t index, Run run);
  Status mlp_backward(size_t index, const at::Tensor& grad) const;
  Status attention_backward(size_t index, const at::Tensor& grad) const;
  void show(const std::string& name, const at::Tensor& rows) const;
  /// The address to which the gradient of a norm is added.
  float* gradient_of(const CudaParameter& weight) const;

  const ModelConfig& config_;
  const CudaStream& stream_;
  const at::ScalarType type_;
  const Recompute recompute_;
  LearnerAdapters* const adapters_;
  const std::unique_ptr<CudaTrainingMixture> mixture_;  // null: all layers are dense
  TrainingAttention attention_;
  CudaParameter embedding_, final_norm_;
  std::vector<Layer> layers_;
  ActivationVisitor visitor_;
  at::Tensor cosine_, sine_;  // [positions, rotary_dim / 2] fp32
  // Rows.
  int64_t capacity_ = 0;
  std::vector<LayerRows> rows_;
  at::Tensor shared_;  // [bytes] of rows that are recomputed
  at::Tensor delta_;   // delta of the last stage; in backward, the gradient of a stage's norm
  at::Tensor last_, last_inverse_rms_, normed_;
  at::Tensor workspace_;  // for sums over rows
  at::Tensor unread_;     // [width of a norm] gradients of frozen norms, never read
  // For the current batch.
  int64_t num_rows_ = 0;
  at::Tensor tokens_, positions_;
  int64_t num_ids_ = 0;
  at::Tensor tokens_by_id_;  // ids, offsets, row indices (EmbeddingBackwardArgs)
};

}  // namespace primerl
