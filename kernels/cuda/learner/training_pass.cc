#include "kernels/cuda/learner/training_pass.h"

#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "kernels/cuda/layers/swiglu.h"
#include "kernels/models/rope.h"

namespace primerl {
namespace {

HeadShape heads_of_layer(const ModelConfig& config) {
  const AttentionSpec& attention = config.attention;
  return {attention.num_heads, attention.num_kv_heads, attention.head_dim};
}

}  // namespace

CudaTrainingPass::CudaTrainingPass(const ModelConfig& config, const CudaParameters& parameters,
                                   at::ScalarType type, LearnerAdapters* adapters,
                                   const CudaStream& stream, Recompute recompute,
                                   bool is_repeatable)
    : config_(config),
      stream_(stream),
      type_(type),
      recompute_(recompute),
      adapters_(adapters),
      mixture_(config.moe.has_value()
                   ? std::make_unique<CudaTrainingMixture>(config, type, adapters, stream)
                   : nullptr),
      attention_(config.attention, stream, is_repeatable),
      embedding_(parameters("embedding")),
      final_norm_(parameters("final_norm")),
      unread_(at::zeros({std::max(config.hidden_size, config.attention.head_dim)},
                        at::TensorOptions(stream.device()).dtype(at::kFloat))) {
  for (int32_t i = 0; i < config.num_layers(); ++i) layers_.push_back(layer_of(i, parameters));
}

CudaTrainingPass::Layer CudaTrainingPass::layer_of(int32_t index,
                                                   const CudaParameters& parameters) const {
  const bool is_mixture = is_mixture_layer(config_, static_cast<size_t>(index));
  const auto of_attention = [&](std::string_view name) {
    return parameters(fmt::format("layers.{}.attention.{}", index, name));
  };
  const auto of_mlp = [&](std::string_view name) {
    return parameters(fmt::format("layers.{}.{}.{}", index, is_mixture ? "moe" : "mlp", name));
  };
  return {.attention_norm = of_attention("norm"),
          .mlp_norm = of_mlp("norm"),
          .q_norm = of_attention("q_norm"),
          .k_norm = of_attention("k_norm"),
          .qkv = of_attention("qkv"),
          .qkv_bias = of_attention("qkv_bias"),
          .out = of_attention("out"),
          .out_bias = of_attention("out_bias"),
          .gate_up = of_mlp("gate_up"),
          .gate_up_bias = of_mlp("gate_up_bias"),
          .down = of_mlp("down"),
          .down_bias = of_mlp("down_bias"),
          .is_mixture = is_mixture,
          .mixture = {.router = of_mlp("router"),
                      .selection_bias = of_mlp("selection_bias"),
                      .gate_up = of_mlp("experts_gate_up"),
                      .down = of_mlp("experts_down"),
                      .shared_gate_up = of_mlp("shared_gate_up"),
                      .shared_down = of_mlp("shared_down")}};
}

/// The same angles as on the CPU (kernels/cpu/stages/decoder.cc).
void CudaTrainingPass::make_angles(int64_t positions) {
  if (cosine_.defined() && positions <= cosine_.size(0)) return;
  const auto count = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(positions)));
  const auto frequencies = rope_frequencies(config_.rope, config_.attention.rotary_dim);
  const auto half = static_cast<int64_t>(frequencies.size());
  const at::Tensor cosine = at::empty({count, half}, at::kFloat);
  const at::Tensor sine = at::empty({count, half}, at::kFloat);
  write_rope_angles(config_.rope, frequencies, 0, count, cosine.mutable_data_ptr<float>(),
                    sine.mutable_data_ptr<float>());
  cosine_ = cosine.to(stream_.device());
  sine_ = sine.to(stream_.device());
}

cuda::Type CudaTrainingPass::type() const { return op_type(type_); }

Status CudaTrainingPass::begin(const RowBatch& batch) {
  num_rows_ = batch.num_rows();
  grow(num_rows_);
  make_angles(1 + *std::max_element(batch.positions.begin(), batch.positions.end()));
  tokens_ = stream_.ints(batch.tokens);
  positions_ = stream_.ints(batch.positions);
  attention_.begin(batch, type_);
  if (adapters_ != nullptr) RETURN_IF_ERROR(adapters_->begin(batch));
  return launched(cuda::gather_rows({.rows = num_rows_,
                                     .width = config_.hidden_size,
                                     .type = type(),
                                     .x = embedding_.data(),
                                     .sources = tokens_.const_data_ptr<int32_t>(),
                                     .y = rows_.front().input.mutable_data_ptr()},
                                    stream_.raw()),
                  "embedding");
}

void CudaTrainingPass::show(const std::string& name, const at::Tensor& rows) const {
  if (visitor_) visitor_(name, some(rows));
}

Status CudaTrainingPass::norm(const at::Tensor& x, const at::Tensor& delta,
                              const CudaParameter& weight, const at::Tensor& sum,
                              const at::Tensor& y, const at::Tensor& inverse_rms) const {
  std::optional<cuda::Residual> residual;
  if (delta.defined())
    residual = {cuda::GemmOutput{delta.const_data_ptr()}, sum.mutable_data_ptr()};
  return launched(cuda::rms_norm({.rows = num_rows_,
                                  .width = config_.hidden_size,
                                  .epsilon = static_cast<float>(config_.rms_norm_epsilon),
                                  .type = type(),
                                  .x = x.const_data_ptr(),
                                  .weight = weight.data(),
                                  .y = y.mutable_data_ptr(),
                                  .residual = residual,
                                  .inverse_rms = inverse_rms.mutable_data_ptr<float>()},
                                 stream_.raw()),
                  "rms_norm");
}

Status CudaTrainingPass::norm_backward(const at::Tensor& dy, const at::Tensor& x,
                                       const CudaParameter& weight, const at::Tensor& inverse_rms,
                                       const at::Tensor& grad, bool adds) const {
  return launched(cuda::rms_norm_backward({.rows = num_rows_,
                                           .width = config_.hidden_size,
                                           .type = type(),
                                           .dy = dy.const_data_ptr(),
                                           .x = x.const_data_ptr(),
                                           .weight = weight.data(),
                                           .inverse_rms = inverse_rms.const_data_ptr<float>(),
                                           .dsum = adds ? grad.const_data_ptr() : nullptr,
                                           .dx = grad.mutable_data_ptr(),
                                           .dweight = gradient_of(weight),
                                           .workspace = workspace_.mutable_data_ptr<float>()},
                                          stream_.raw()),
                  "rms_norm_backward");
}

void CudaTrainingPass::gemm(const at::Tensor& x, const CudaParameter& weight,
                            const CudaParameter& bias, const at::Tensor& y) const {
  at::Tensor to = some(y);
  if (weight.fp8 != nullptr) {
    fp8_gemm(num_rows_, x, weight.fp8->forward, y, stream_);
    if (bias.weight.defined()) to.add_(bias.weight);
  } else if (bias.weight.defined()) {
    at::addmm_out(to, bias.weight, some(x), weight.weight.t());
  } else {
    at::mm_out(to, some(x), weight.weight.t());
  }
  if (weight.adapters != nullptr) adapters_->forward(*weight.adapters, some(x), to);
}

/// bf16 GEMMs add directly to the fp32 gradients.
void CudaTrainingPass::gemm_backward(const at::Tensor& x, const at::Tensor& dy,
                                     const CudaParameter& weight, const CudaParameter& bias,
                                     const at::Tensor& dx) const {
  const at::Tensor grad = some(dy);
  at::Tensor gradient = weight.gradient, to = some(dx);
  if (gradient.defined() && type_ == at::kFloat)
    at::addmm_out(gradient, gradient, grad.t(), some(x));
  else if (gradient.defined())
    at::addmm_out(gradient, gradient, grad.t(), some(x), at::kFloat);
  if (bias.gradient.defined()) {
    at::Tensor of_bias = bias.gradient;
    of_bias.add_(at::sum(grad, {0}, false, at::kFloat));
  }
  if (weight.fp8 != nullptr)
    fp8_gemm(num_rows_, dy, weight.fp8->backward, dx, stream_);
  else
    at::mm_out(to, grad, weight.weight);
  if (weight.adapters != nullptr) adapters_->backward(*weight.adapters, some(x), grad, to);
}

float* CudaTrainingPass::gradient_of(const CudaParameter& weight) const {
  return weight.gradient.defined() ? weight.grad() : unread_.mutable_data_ptr<float>();
}

Status CudaTrainingPass::rotate(const Layer& layer, const Rows& rows) const {
  const int32_t d = config_.attention.head_dim;
  const int64_t kv = key_columns(config_);
  return launched(cuda::rotary({.rows = num_rows_,
                                .heads = heads_of_layer(config_),
                                .rotary_dim = config_.attention.rotary_dim,
                                .epsilon = static_cast<float>(config_.rms_norm_epsilon),
                                .type = type(),
                                .qkv = {rows.qkv.const_data_ptr()},
                                .q_weight = layer.q_norm.data(),
                                .k_weight = layer.k_norm.data(),
                                .positions = positions_.const_data_ptr<int32_t>(),
                                .cosine = cosine_.const_data_ptr<float>(),
                                .sine = sine_.const_data_ptr<float>(),
                                .q = rows.q.mutable_data_ptr(),
                                // Values are read where the GEMM wrote them.
                                .cache = {.keys = rows.keys.mutable_data_ptr(),
                                          .values = nullptr,
                                          .block_size = 1,
                                          .block_stride = kv,
                                          .row_stride = kv,
                                          .head_stride = d}},
                               stream_.raw()),
                  "rotary");
}

AttentionRows CudaTrainingPass::attention_rows(const Rows& rows) const {
  const int64_t q = query_columns(config_), kv = key_columns(config_);
  return {some(rows.q), some(rows.keys), some(rows.qkv).narrow(1, q + kv, kv)};
}

Status CudaTrainingPass::attention_stage(size_t index, Run run) {
  LayerRows& layer = rows_[index];
  const Rows& rows = layer.rows;
  const Layer& weights = layers_[index];
  const bool continues = run == Run::kForward && index > 0;
  RETURN_IF_ERROR(norm(continues ? rows_[index - 1].rows.between : layer.input,
                       continues ? delta_ : at::Tensor(), weights.attention_norm, layer.input,
                       rows.normed, rows.inverse_rms));
  gemm(rows.normed, weights.qkv, weights.qkv_bias, rows.qkv);
  RETURN_IF_ERROR(rotate(weights, rows));
  if (run != Run::kAgainWithoutAttention)
    layer.kept = attention_.forward(attention_rows(rows), some(rows.attended));
  if (run == Run::kForward && recompute_ == Recompute::kFull) layer.kept.clear();
  gemm(rows.attended, weights.out, weights.out_bias, delta_);
  return ok();
}

Status CudaTrainingPass::mlp_stage(size_t index, Run run) {
  LayerRows& layer = rows_[index];
  const Rows& rows = layer.rows;
  const Layer& weights = layers_[index];
  RETURN_IF_ERROR(norm(layer.input, delta_, weights.mlp_norm, rows.between, rows.mlp_normed,
                       rows.mlp_inverse_rms));
  if (weights.is_mixture) return mixture_stage(index, run);
  gemm(rows.mlp_normed, weights.gate_up, weights.gate_up_bias, rows.gate_up);
  RETURN_IF_ERROR(apply_swiglu(num_rows_, rows.gate_up, rows.activated, stream_));
  if (run == Run::kForward) gemm(rows.activated, weights.down, weights.down_bias, delta_);
  return ok();
}

Status CudaTrainingPass::mixture_stage(size_t index, Run run) {
  LayerRows& layer = rows_[index];
  const bool is_forward = run == Run::kForward;
  ASSIGN_OR_RETURN(layer.mixture,
                   mixture_->forward(layers_[index].mixture, some(layer.rows.mlp_normed),
                                     is_forward ? some(delta_) : at::Tensor()));
  if (is_forward && visitor_) {
    const std::string prefix = fmt::format("layers.{}.moe.", index);
    visitor_(prefix + "scores", layer.mixture.scores);
    visitor_(prefix + "experts", layer.mixture.experts);
    visitor_(prefix + "expert_weights", layer.mixture.weights);
    visitor_(prefix + "activated", layer.mixture.activated);
  }
  if (is_forward && recompute_ != Recompute::kNone) layer.mixture = {};
  return ok();
}

Result<at::Tensor> CudaTrainingPass::forward(const RowBatch& batch) {
  RETURN_IF_ERROR(begin(batch));
  show("embedding.output", rows_.front().input);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Rows& rows = rows_[i].rows;
    const std::string attention = fmt::format("layers.{}.attention.", i);
    const bool is_mixture = layers_[i].is_mixture;
    const std::string mlp = fmt::format("layers.{}.{}.", i, is_mixture ? "moe" : "mlp");
    RETURN_IF_ERROR(attention_stage(i, Run::kForward));
    show(attention + "normed", rows.normed);
    show(attention + "qkv", rows.qkv);
    show(attention + "q", rows.q);
    show(attention + "attended", rows.attended);
    RETURN_IF_ERROR(mlp_stage(i, Run::kForward));
    show(attention + "output", rows.between);
    show(mlp + "normed", rows.mlp_normed);
    if (!is_mixture) show(mlp + "gate_up", rows.gate_up);
    if (!is_mixture) show(mlp + "activated", rows.activated);
    if (visitor_) show(mlp + "output", at::add(rows.between, delta_));
  }
  RETURN_IF_ERROR(
      norm(rows_.back().rows.between, delta_, final_norm_, last_, normed_, last_inverse_rms_));
  show("final_norm.output", normed_);
  if (!embedding_.gradient.defined()) return some(normed_);
  // Runs while the device computes.
  const GroupedIndices grouped = group_indices(batch.tokens);
  num_ids_ = grouped.num_ids;
  tokens_by_id_ = stream_.ints(grouped.all);
  return some(normed_);
}

/// `grad` [rows, hidden]: gradient of the stage's output; becomes that of its input.
Status CudaTrainingPass::mlp_backward(size_t index, const at::Tensor& grad) const {
  const Rows& rows = rows_[index].rows;
  const Layer& weights = layers_[index];
  if (weights.is_mixture) {
    RETURN_IF_ERROR(mixture_->backward(weights.mixture, rows_[index].mixture, some(rows.mlp_normed),
                                       some(grad), some(delta_)));
    return norm_backward(delta_, rows.between, weights.mlp_norm, rows.mlp_inverse_rms, grad, true);
  }
  const at::Tensor dactivated = block(config_.mlp.width);
  gemm_backward(rows.activated, grad, weights.down, weights.down_bias, dactivated);
  RETURN_IF_ERROR(apply_swiglu_backward(num_rows_, rows.gate_up, dactivated, stream_));
  const at::Tensor& dgate_up = rows.gate_up;
  gemm_backward(rows.mlp_normed, dgate_up, weights.gate_up, weights.gate_up_bias, delta_);
  return norm_backward(delta_, rows.between, weights.mlp_norm, rows.mlp_inverse_rms, grad, true);
}

Status CudaTrainingPass::attention_backward(size_t index, const at::Tensor& grad) const {
  const Rows& rows = rows_[index].rows;
  const Layer& weights = layers_[index];
  const int64_t q = query_columns(config_), kv = key_columns(config_);
  // The mlp's rows are no longer needed.
  const at::Tensor dattended = reused_rows(rows.activated, q);
  gemm_backward(rows.attended, grad, weights.out, weights.out_bias, dattended);
  ASSIGN_OR_RETURN(const AttentionRows grads,
                   attention_.backward(attention_rows(rows), some(rows.attended), rows_[index].kept,
                                       some(dattended)));
  const at::Tensor dqkv = reused_rows(rows.gate_up, q + 2 * kv);
  RETURN_IF_ERROR(
      launched(cuda::rotary_backward({.rows = num_rows_,
                                      .heads = heads_of_layer(config_),
                                      .rotary_dim = config_.attention.rotary_dim,
                                      .epsilon = static_cast<float>(config_.rms_norm_epsilon),
                                      .type = type(),
                                      .qkv = rows.qkv.const_data_ptr(),
                                      .q_weight = weights.q_norm.data(),
                                      .k_weight = weights.k_norm.data(),
                                      .positions = positions_.const_data_ptr<int32_t>(),
                                      .cosine = cosine_.const_data_ptr<float>(),
                                      .sine = sine_.const_data_ptr<float>(),
                                      .dq = grads.queries.const_data_ptr(),
                                      .dkeys = grads.keys.const_data_ptr(),
                                      .dvalues = grads.values.const_data_ptr(),
                                      .dqkv = dqkv.mutable_data_ptr(),
                                      .dq_weight = gradient_of(weights.q_norm),
                                      .dk_weight = gradient_of(weights.k_norm),
                                      .workspace = workspace_.mutable_data_ptr<float>()},
                                     stream_.raw()),
               "rotary_backward"));
  gemm_backward(rows.normed, dqkv, weights.qkv, weights.qkv_bias, delta_);
  return norm_backward(delta_, rows_[index].input, weights.attention_norm, rows.inverse_rms, grad,
                       true);
}

Status CudaTrainingPass::backward() {
  const at::Tensor& grad = normed_;  // gradient of the residual stream, layer by layer
  RETURN_IF_ERROR(norm_backward(grad, last_, final_norm_, last_inverse_rms_, grad, false));
  const Run run = recompute_ == Recompute::kFull ? Run::kAgain : Run::kAgainWithoutAttention;
  for (size_t i = layers_.size(); i-- > 0;) {
    if (recompute_ != Recompute::kNone) {
      RETURN_IF_ERROR(attention_stage(i, run));
      RETURN_IF_ERROR(mlp_stage(i, run));
    }
    RETURN_IF_ERROR(mlp_backward(i, grad));
    rows_[i].mixture = {};
    RETURN_IF_ERROR(attention_backward(i, grad));
    rows_[i].kept.clear();
  }
  if (!embedding_.gradient.defined()) return ok();
  const auto* ids = tokens_by_id_.const_data_ptr<int32_t>();
  return launched(cuda::embedding_backward({.num_ids = num_ids_,
                                            .width = config_.hidden_size,
                                            .type = type(),
                                            .ids = ids,
                                            .offsets = ids + num_ids_,
                                            .row_indices = ids + 2 * num_ids_ + 1,
                                            .dy = grad.const_data_ptr(),
                                            .dtable = embedding_.grad()},
                                           stream_.raw()),
                  "embedding_backward");
}

}  // namespace primerl
