#include "kernels/torch/models/decoder_gradient.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace primerl {
namespace {

const float* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

float* mutable_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
}

/// Backward of y = x * weight' (+ bias): gradients of weight and bias are added, dx is written.
void backward_linear(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                     at::Tensor& dweight, at::Tensor& dbias, at::Tensor& dx) {
  at::addmm_out(dweight, dweight, dy.t(), x);
  if (dbias.defined()) dbias.add_(at::sum(dy, 0));
  at::mm_out(dx, dy, weight);
}

at::Tensor block(int64_t rows, int64_t width) { return at::zeros({rows, width}, at::kFloat); }

}  // namespace

DecoderGradient::DecoderGradient(Decoder& decoder, const DecoderLayout& layout)
    : ops_(cpu_ops()), decoder_(decoder), gradients_(decoder.config(), layout) {}

void DecoderGradient::grow(int64_t rows) {
  if (rows > capacity_) {
    const ModelConfig& c = decoder_.config();
    const int64_t q = c.num_heads * c.head_dim, kv = c.num_kv_heads * c.head_dim;
    layer_storage_.clear();
    cache_storage_.clear();
    for (int32_t i = 0; i < c.num_layers; ++i) {
      layer_storage_.push_back(LayerRows::make(c, rows, false));
      cache_storage_.push_back({block(rows, kv), block(rows, kv)});
    }
    last_storage_.input = block(rows, c.hidden_size);
    last_storage_.input_scale = at::zeros({rows}, at::kFloat);
    last_storage_.input_normed = block(rows, c.hidden_size);
    const int64_t wide = c.intermediate_size;
    flow_storage_ = {block(rows, c.hidden_size),
                     block(rows, c.hidden_size),
                     block(rows, wide),
                     block(rows, 2 * wide),
                     block(rows, q),
                     block(rows, q),
                     block(rows, q + 2 * kv),
                     {block(rows, kv), block(rows, kv)}};
    capacity_ = rows;
    last_ = at::Tensor();
  }
  if (last_.defined() && last_.size(0) == rows) return;
  const auto cut = [rows](const at::Tensor& tensor) { return tensor.narrow(0, 0, rows); };
  layers_.clear();
  caches_.clear();
  for (const auto& layer : layer_storage_) layers_.push_back(layer.first(rows));
  for (const auto& cache : cache_storage_) caches_.push_back({cut(cache.keys), cut(cache.values)});
  last_ = cut(last_storage_.input);
  last_scale_ = cut(last_storage_.input_scale);
  normed_ = cut(last_storage_.input_normed);
  const Flow& f = flow_storage_;
  flow_ = {
      cut(f.residual), cut(f.normed), cut(f.activated), cut(f.gate_up),
      cut(f.attended), cut(f.q),      cut(f.qkv),       {cut(f.cache.keys), cut(f.cache.values)}};
}

const at::Tensor& DecoderGradient::forward(const RowBatch& batch) {
  grow(batch.num_rows());
  decoder_.prepare_positions(1 + *std::max_element(batch.positions.begin(), batch.positions.end()));
  copy_spans(batch, spans_);
  decoder_.embed(batch, layers_.front().input);
  for (size_t i = 0; i < layers_.size(); ++i) {
    at::Tensor& output = i + 1 < layers_.size() ? layers_[i + 1].input : last_;
    decoder_.forward(i, batch, spans_, layers_[i], caches_[i].keys.mutable_data_ptr<float>(),
                     caches_[i].values.mutable_data_ptr<float>(), output);
  }
  decoder_.norm(decoder_.parameters().final_norm, batch.num_rows(), last_, normed_, last_scale_);
  return normed_;
}

void DecoderGradient::backward(const RowBatch& batch, const at::Tensor& dnormed) {
  const int64_t rows = batch.num_rows(), width = decoder_.config().hidden_size;
  flow_.residual.zero_();
  backward_norm(decoder_.parameters().final_norm, rows, last_, last_scale_, dnormed,
                gradients_.final_norm);
  for (size_t i = layers_.size(); i-- > 0;) {
    backward_mlp(i, rows);
    backward_attention(i, batch);
  }
  float* table = gradients_.embedding.mutable_data_ptr<float>();
  const float* from = flow_.residual.const_data_ptr<float>();
  for (const int32_t token : batch.tokens) {
    float* to = table + token * width;
    for (int64_t i = 0; i < width; ++i) to[i] += from[i];
    from += width;
  }
}

void DecoderGradient::backward_norm(const at::Tensor& weight, int64_t rows, const at::Tensor& x,
                                    const at::Tensor& scale, const at::Tensor& dy,
                                    at::Tensor& dweight) {
  ops_.rms_norm_backward({.rows = rows,
                          .width = decoder_.config().hidden_size,
                          .dy = dy.const_data_ptr<float>(),
                          .x = x.const_data_ptr<float>(),
                          .weight = weight.const_data_ptr<float>(),
                          .inverse_rms = scale.const_data_ptr<float>(),
                          .dx = flow_.residual.mutable_data_ptr<float>(),
                          .dweight = dweight.mutable_data_ptr<float>()});
}

void DecoderGradient::backward_mlp(size_t layer, int64_t rows) {
  const LayerParameters& weights = decoder_.parameters().layers[layer];
  LayerParameters& gradients = gradients_.layers[layer];
  const LayerRows& kept = layers_[layer];
  backward_linear(flow_.residual, kept.activated, weights.down, gradients.down, gradients.down_bias,
                  flow_.activated);
  ops_.swiglu_backward({.rows = rows,
                        .width = decoder_.config().intermediate_size,
                        .gate_up = kept.gate_up.const_data_ptr<float>(),
                        .dactivated = flow_.activated.const_data_ptr<float>(),
                        .dgate_up = flow_.gate_up.mutable_data_ptr<float>()});
  backward_linear(flow_.gate_up, kept.mlp_normed, weights.gate_up, gradients.gate_up,
                  gradients.gate_up_bias, flow_.normed);
  backward_norm(weights.mlp_norm, rows, kept.middle, kept.mlp_scale, flow_.normed,
                gradients.mlp_norm);
}

void DecoderGradient::backward_attention(size_t layer, const RowBatch& batch) {
  const LayerParameters& weights = decoder_.parameters().layers[layer];
  LayerParameters& gradients = gradients_.layers[layer];
  const LayerRows& kept = layers_[layer];
  const int64_t rows = batch.num_rows();
  backward_linear(flow_.residual, kept.attended, weights.out, gradients.out, gradients.out_bias,
                  flow_.attended);
  flow_.cache.keys.zero_();
  flow_.cache.values.zero_();
  const HeadShape heads = decoder_.heads();
  ops_.attention_backward({.forward = {.spans = spans_.data(),
                                       .num_spans = static_cast<int64_t>(spans_.size()),
                                       .heads = heads,
                                       .head_begin = 0,
                                       .head_end = heads.num_heads,
                                       .scale = decoder_.attention_scale(),
                                       .kv_rows = batch.kv_rows.data(),
                                       .q = kept.q.const_data_ptr<float>(),
                                       .keys = caches_[layer].keys.const_data_ptr<float>(),
                                       .values = caches_[layer].values.const_data_ptr<float>(),
                                       .out = kept.attended.mutable_data_ptr<float>(),
                                       .log_sum_exp = kept.log_sum_exp.mutable_data_ptr<float>()},
                           .dout = flow_.attended.const_data_ptr<float>(),
                           .dq = flow_.q.mutable_data_ptr<float>(),
                           .dkeys = flow_.cache.keys.mutable_data_ptr<float>(),
                           .dvalues = flow_.cache.values.mutable_data_ptr<float>()});
  ops_.rotary_backward({.rows = rows,
                        .heads = heads,
                        .epsilon = static_cast<float>(decoder_.config().rms_norm_epsilon),
                        .qkv = kept.qkv.const_data_ptr<float>(),
                        .q_weight = data_or_null(weights.q_norm),
                        .k_weight = data_or_null(weights.k_norm),
                        .positions = batch.positions.data(),
                        .cosine = decoder_.cosine(),
                        .sine = decoder_.sine(),
                        .dq = flow_.q.const_data_ptr<float>(),
                        .dkeys = flow_.cache.keys.const_data_ptr<float>(),
                        .dvalues = flow_.cache.values.const_data_ptr<float>(),
                        .dqkv = flow_.qkv.mutable_data_ptr<float>(),
                        .dq_weight = mutable_or_null(gradients.q_norm),
                        .dk_weight = mutable_or_null(gradients.k_norm)});
  backward_linear(flow_.qkv, kept.input_normed, weights.qkv, gradients.qkv, gradients.qkv_bias,
                  flow_.normed);
  backward_norm(weights.input_norm, rows, kept.input, kept.input_scale, flow_.normed,
                gradients.input_norm);
}

}  // namespace primerl
