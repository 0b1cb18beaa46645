/// One decoder for every family of the catalog: RMS norm, grouped-query attention with rotary
/// positions and optional per-head norm, SwiGLU, tied or own head. fp32.
///
/// Owns the weights; activations belong to the caller (LayerRows), so that an engine reuses one set
/// for every layer and a learner keeps one a layer. All arithmetic is kernels/ops: every row's
/// result depends on that row's sequence alone, bit for bit, whatever the other rows are and
/// however many threads share a product.
///
/// Products read a packed copy of the weights: call pack_weights() after the parameters have
/// changed. Used by one thread; products are shared out over its compute threads (boundary.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/engine/row_batch.h"
#include "kernels/ops/ops.h"
#include "kernels/torch/model_config.h"
#include "kernels/torch/models/decoder_layout.h"

namespace primerl {

/// Weights (or gradients) of one layer as views of the flat buffer; undefined where the model has
/// none.
struct LayerParameters {
  at::Tensor input_norm;  // [hidden]
  at::Tensor qkv;         // [(num_heads + 2 num_kv_heads) * head_dim, hidden]
  at::Tensor qkv_bias;
  at::Tensor q_norm;  // [head_dim]
  at::Tensor k_norm;  // [head_dim]
  at::Tensor out;     // [hidden, num_heads * head_dim]
  at::Tensor out_bias;
  at::Tensor mlp_norm;  // [hidden]
  at::Tensor gate_up;   // [2 intermediate, hidden]
  at::Tensor gate_up_bias;
  at::Tensor down;  // [hidden, intermediate]
  at::Tensor down_bias;
};

/// A flat buffer seen as a decoder's parameters.
struct DecoderParameters {
  DecoderParameters(const ModelConfig& config, const DecoderLayout& layout);

  at::Tensor flat;  // [layout.count]
  std::vector<LayerParameters> layers;
  at::Tensor embedding;   // [vocab_size, hidden]
  at::Tensor final_norm;  // [hidden]
  at::Tensor head;        // [vocab_size, hidden]; the embedding when tied
};

/// Activations of one layer.
struct LayerRows {
  at::Tensor input;         // [rows, hidden], the residual stream
  at::Tensor input_scale;   // [rows], 1 / rms
  at::Tensor input_normed;  // [rows, hidden]
  at::Tensor qkv;           // [rows, (num_heads + 2 num_kv_heads) * head_dim]
  at::Tensor q;             // [rows, num_heads * head_dim], rotated
  at::Tensor attended;      // [rows, num_heads * head_dim]
  at::Tensor log_sum_exp;   // [rows, num_heads]
  at::Tensor middle;        // [rows, hidden], the residual stream after attention
  at::Tensor mlp_scale;     // [rows]
  at::Tensor mlp_normed;    // [rows, hidden]
  at::Tensor gate_up;       // [rows, 2 intermediate]
  at::Tensor activated;     // [rows, intermediate]

  /// `in_place`: the residual stream before and after attention is one tensor.
  static LayerRows make(const ModelConfig& config, int64_t rows, bool in_place);
  /// The first `rows` of each.
  LayerRows first(int64_t rows) const;
};

/// A matrix as linear_rows reads it.
struct PackedWeights {
  int64_t columns = 0, terms = 0;
  at::Tensor floats;  // [packed_linear_floats(columns, terms)]
};
struct PackedLayer {
  PackedWeights qkv, out, gate_up, down;
};

class Decoder {
 public:
  Decoder(ModelConfig config, const DecoderLayout& layout);

  const ModelConfig& config() const { return config_; }
  DecoderParameters& parameters() { return parameters_; }
  /// Makes the parameters those of the next products.
  void pack_weights();
  HeadShape heads() const;
  float attention_scale() const;

  /// Rotary angles for positions [0, count); at most doubles what is there.
  void prepare_positions(int64_t count);
  const float* cosine() const { return cosine_.data(); }
  const float* sine() const { return sine_.data(); }

  void embed(const RowBatch& batch, at::Tensor& hidden) const;
  /// output = layer(rows.input); `output` may be `rows.input`. Keys and values of the batch are
  /// written to the cache rows before anything attends.
  void forward(size_t layer, const RowBatch& batch, std::span<const AttentionSpan> spans,
               LayerRows& rows, float* keys, float* values, at::Tensor& output);
  void norm(const at::Tensor& weight, int64_t rows, const at::Tensor& x, at::Tensor& y,
            at::Tensor& scale) const;
  /// logits [rows, vocab_size] of rows that went through the final norm.
  void logits(const at::Tensor& normed, at::Tensor& logits) const;

 private:
  const ModelConfig config_;
  const CpuOps& ops_;
  DecoderParameters parameters_;
  std::vector<PackedLayer> packed_;
  PackedWeights head_;
  std::vector<float> frequencies_;
  std::vector<float> cosine_;  // [positions, head_dim / 2]
  std::vector<float> sine_;
};

/// The spans of a batch as the attention op takes them.
void copy_spans(const RowBatch& batch, std::vector<AttentionSpan>& spans);

}  // namespace primerl
