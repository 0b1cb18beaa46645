/// Forward and backward of a Decoder by hand: an explicit layer executor, no autograd graph.
///
/// Keeps every layer's activations of one micro-batch (memory grows with the largest one seen) and
/// adds parameter gradients into one flat buffer of the decoder's layout. Each function's backward
/// stands beside the forward it undoes, in reverse order. One thread.
#pragma once

#include <vector>

#include "kernels/torch/models/decoder.h"

namespace primerl {

class DecoderGradient {
 public:
  DecoderGradient(Decoder& decoder, const DecoderLayout& layout);

  /// Runs the layers and the final norm; the result [rows, hidden] is valid until the next call.
  const at::Tensor& forward(const RowBatch& batch);
  /// Adds the gradients of the batch of the last forward(). `dnormed` [rows, hidden] is the
  /// gradient of its result.
  void backward(const RowBatch& batch, const at::Tensor& dnormed);

  DecoderParameters& gradients() { return gradients_; }

 private:
  /// Keys and values of one layer's rows, then their gradients.
  struct Cache {
    at::Tensor keys;  // [rows, num_kv_heads * head_dim]
    at::Tensor values;
  };
  /// Gradients inside one layer.
  struct Flow {
    at::Tensor residual;   // [rows, hidden]
    at::Tensor normed;     // [rows, hidden]
    at::Tensor activated;  // [rows, intermediate]
    at::Tensor gate_up;    // [rows, 2 intermediate]
    at::Tensor attended;   // [rows, num_heads * head_dim]
    at::Tensor q;          // [rows, num_heads * head_dim]
    at::Tensor qkv;        // [rows, (num_heads + 2 num_kv_heads) * head_dim]
    Cache cache;
  };

  void grow(int64_t rows);
  void backward_mlp(size_t layer, int64_t rows);
  void backward_attention(size_t layer, const RowBatch& batch);
  void backward_norm(const at::Tensor& weight, int64_t rows, const at::Tensor& x,
                     const at::Tensor& scale, const at::Tensor& dy, at::Tensor& dweight);

  const CpuOps& ops_;
  Decoder& decoder_;
  DecoderParameters gradients_;
  std::vector<AttentionSpan> spans_;
  // Of the last forward(); views of the storage below.
  std::vector<LayerRows> layers_;
  std::vector<Cache> caches_;
  at::Tensor last_;  // [padded rows, hidden], after the last layer
  at::Tensor last_scale_;
  at::Tensor normed_;
  Flow flow_;
  // Storage at the largest size seen.
  int64_t capacity_ = 0;
  std::vector<LayerRows> layer_storage_;
  std::vector<Cache> cache_storage_;
  LayerRows last_storage_;
  Flow flow_storage_;
};

}  // namespace primerl
