#include "kernels/cuda/engine/decoder.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/layers/gemm.h"
#include "kernels/cuda/layers/swiglu.h"
#include "kernels/models/rope.h"

namespace primerl {
namespace {

HeadShape heads_of(const ModelConfig& config) {
  const AttentionSpec& attention = config.attention;
  return {attention.num_heads, attention.num_kv_heads, attention.head_dim};
}

int64_t q_width(const ModelConfig& config) {
  return int64_t{config.attention.num_heads} * config.attention.head_dim;
}

int64_t kv_width(const ModelConfig& config) {
  return int64_t{config.attention.num_kv_heads} * config.attention.head_dim;
}

/// 0 if every layer has a mixture.
int64_t mlp_width(const ModelConfig& config) {
  const bool has_mlp = std::ranges::any_of(config.layers, [](const LayerSpec& layer) {
    return std::holds_alternative<MlpSpec>(layer.stages.back());
  });
  return has_mlp ? config.mlp.width : 0;
}

/// Floats of the parts that a stage adds.
int64_t num_part_floats(const ModelConfig& config, int32_t num_parts) {
  return num_parts * cuda::kSmallMRowsMax * config.hidden_size;
}

}  // namespace

cuda::PagedCache CudaKvCache::paged(size_t layer, int32_t size, int32_t head_dim) const {
  const int64_t width = keys.size(2);
  const auto at = static_cast<int64_t>(layer);
  return {keys.select(0, at).mutable_data_ptr(),
          values.select(0, at).mutable_data_ptr(),
          size,
          size * width,
          width,
          head_dim};
}

CudaDecoder::CudaDecoder(const ModelConfig& config, const CudaWeights& weights,
                         CudaAdapterSlots* adapters, const CudaStream& stream,
                         const cuda::Tuning& tuning, int64_t rows_max, int64_t samples_max,
                         int64_t positions_max)
    : config_(config),
      tuning_(tuning),
      adapters_(adapters),
      stream_(stream),
      type_(weights.type()),
      embedding_(weights.data("embedding")),
      final_norm_(weights.data("final_norm")),
      head_(weights.linear(config.is_tied ? "embedding" : "head")),
      on_head_(adapters == nullptr ? nullptr
                                   : adapters->find(config.is_tied ? "embedding" : "head")) {
  if (config.moe.has_value()) mixture_.emplace(config, weights, adapters, stream, rows_max);
  const auto linear_of = [&](const std::string& name) -> Linear {
    return {weights.linear(name), adapters == nullptr ? nullptr : adapters->find(name)};
  };
  for (int32_t i = 0; i < config.num_layers(); ++i) {
    const std::string attention = fmt::format("layers.{}.attention.", i);
    const std::string second = fmt::format(
        "layers.{}.{}.", i, stage_name(config.layers[static_cast<size_t>(i)].stages.back()));
    layers_.push_back({weights.data(attention + "norm"), weights.data(second + "norm"),
                       weights.data(attention + "q_norm"), weights.data(attention + "k_norm"),
                       linear_of(attention + "qkv"), linear_of(attention + "out"),
                       linear_of(second + "gate_up"), linear_of(second + "down"), std::nullopt});
    if (second.ends_with(".moe.")) layers_.back().mixture = mixture_->layer(second);
  }
  const auto rows = [&](int64_t count, int64_t width) {
    return at::empty({count, width}, at::TensorOptions(stream.device()).dtype(type_));
  };
  rows_max = fp8_rows(rows_max);
  for (at::Tensor* of_hidden : {&x_, &delta_, &normed_})
    *of_hidden = rows(rows_max, config.hidden_size);
  qkv_ = rows(rows_max, q_width(config) + 2 * kv_width(config));
  q_ = rows(rows_max, q_width(config));
  attended_ = rows(rows_max, q_width(config));
  gate_up_ = rows(rows_max, 2 * mlp_width(config));
  activated_ = rows(rows_max, mlp_width(config));
  const int32_t parts =
      std::max(cuda::small_m_parts(tuning, q_width(config), config.hidden_size),
               cuda::small_m_parts(tuning, mlp_width(config), config.hidden_size));
  parts_ = at::empty({num_part_floats(config, parts)},
                     at::TensorOptions(stream.device()).dtype(at::kFloat));
  for (at::Tensor* picked : {&picked_x_, &picked_delta_, &picked_normed_})
    *picked = rows(samples_max, config.hidden_size);
  logits_ = at::empty({samples_max, config.vocab_size},
                      at::TensorOptions(stream.device()).dtype(at::kFloat));
  make_angles(positions_max);
}

double CudaDecoder::bytes_needed(const ModelConfig& config, int64_t element_size, int64_t rows_max,
                                 int64_t samples_max, int64_t positions_max) {
  const auto of_row = static_cast<double>(3 * int64_t{config.hidden_size} + 3 * q_width(config) +
                                          2 * kv_width(config) + 3 * mlp_width(config));
  const double sampled = 3.0 * config.hidden_size * static_cast<double>(element_size) +
                         sizeof(float) * static_cast<double>(config.vocab_size);
  const double mixture =
      config.moe.has_value() ? EngineMixture::bytes_needed(config, element_size, rows_max) : 0;
  return static_cast<double>(rows_max) * of_row * static_cast<double>(element_size) + mixture +
         static_cast<double>(samples_max) * sampled +
         sizeof(float) * static_cast<double>(num_part_floats(config, cuda::kSmallMPartsMax)) +
         static_cast<double>(positions_max) * config.attention.rotary_dim * sizeof(float);
}

void CudaDecoder::make_angles(int64_t positions_max) {
  const auto frequencies = rope_frequencies(config_.rope, config_.attention.rotary_dim);
  const auto half = static_cast<int64_t>(frequencies.size());
  at::Tensor cosine = at::empty({positions_max, half}, at::kFloat);
  at::Tensor sine = at::empty({positions_max, half}, at::kFloat);
  write_rope_angles(config_.rope, frequencies, 0, positions_max, cosine.mutable_data_ptr<float>(),
                    sine.mutable_data_ptr<float>());
  cosine_ = cosine.to(stream_.device());
  sine_ = sine.to(stream_.device());
}

void CudaDecoder::use_fp8() {
  for (Layer& layer : layers_) {
    for (Linear* linear : {&layer.qkv, &layer.out, &layer.gate_up, &layer.down})
      if (linear->base.transposed.defined())  // a mixture has no MLP
        linear->base.fp8 = fp8_.add(linear->base.transposed.t(), false);
    if (layer.mixture.has_value()) layer.mixture->use_fp8(fp8_);
  }
}

cuda::Type CudaDecoder::type() const { return op_type(type_); }

cuda::Epilogue CudaDecoder::epilogue_of(const at::Tensor& delta) const {
  if (&delta != &delta_) return cuda::GemmOutput{delta.const_data_ptr()};
  if (num_parts_ > 0)
    return cuda::SplitKOutput{parts_.const_data_ptr<float>(), num_parts_, lora_delta()};
  return cuda::GemmOutput{delta.const_data_ptr(), lora_delta()};
}

Status CudaDecoder::norm(int64_t rows, const at::Tensor& stream, const at::Tensor* delta,
                         const void* weight, const at::Tensor& sum, const at::Tensor& to) const {
  std::optional<cuda::Residual> residual;
  if (delta != nullptr) residual = {epilogue_of(*delta), sum.mutable_data_ptr()};
  return launched(cuda::rms_norm({.rows = rows,
                                  .width = config_.hidden_size,
                                  .epsilon = static_cast<float>(config_.rms_norm_epsilon),
                                  .type = type(),
                                  .x = stream.const_data_ptr(),
                                  .weight = weight,
                                  .y = to.mutable_data_ptr(),
                                  .residual = residual},
                                 stream_.raw()),
                  "rms_norm");
}

cuda::PagedRotaryArgs CudaDecoder::rope_args(const CudaStepRows& rows, const CudaKvCache& cache,
                                             size_t layer) const {
  return {.rows = rows.count,
          .heads = heads_of(config_),
          .rotary_dim = config_.attention.rotary_dim,
          .epsilon = static_cast<float>(config_.rms_norm_epsilon),
          .type = type(),
          .qkv = {qkv_.const_data_ptr(), lora_delta()},
          .q_weight = layers_[layer].q_norm,
          .k_weight = layers_[layer].k_norm,
          .positions = rows.positions,
          .cosine = cosine_.const_data_ptr<float>(),
          .sine = sine_.const_data_ptr<float>(),
          .slots = rows.slots,
          .q = q_.mutable_data_ptr(),
          // Rows of a cache are adjacent, for any block size.
          .cache = cache.paged(layer, 1, config_.attention.head_dim)};
}

Status CudaDecoder::linear(const CudaStepRows& rows, const at::Tensor& x, const Linear& linear,
                           const at::Tensor& y) {
  RETURN_IF_ERROR(with_lora_delta(
      rows, x, linear, [&] { return multiply(rows.count, x, linear.base, y, stream_); }));
  if (!is_adapted(rows, linear) || lora_delta_.has_value()) return ok();
  return adapters_->add(*linear.adapters, rows.adapters, x, y);
}

bool CudaDecoder::is_adapted(const CudaStepRows& rows, const Linear& linear) const {
  return linear.adapters != nullptr && rows.adapters.applies_adapters();
}

template <class Gemm>
Status CudaDecoder::with_lora_delta(const CudaStepRows& rows, const at::Tensor& x,
                                    const Linear& linear, const Gemm& gemm) {
  lora_delta_.reset();
  if (!is_adapted(rows, linear) || !rows.is_decode_step) return gemm();
  adapters_->mark_input();
  RETURN_IF_ERROR(gemm());
  ASSIGN_OR_RETURN(lora_delta_, adapters_->lora_delta(*linear.adapters, rows.adapters, x));
  return ok();
}

int32_t CudaDecoder::parts_of(const CudaStepRows& rows, const CudaLinear& linear) const {
  const auto address = reinterpret_cast<std::uintptr_t>(linear.transposed.const_data_ptr());
  const bool is_small_m = rows.is_decode_step && cuda::has_own_kernels() &&
                          type_ == at::kBFloat16 && rows.count > cuda::kFewRowsMax &&
                          rows.count <= cuda::kSmallMRowsMax && linear.fp8 == nullptr &&
                          !linear.bias.defined() && address % 16 == 0;
  if (!is_small_m) return 0;
  return cuda::small_m_parts(tuning_, linear.transposed.size(0), linear.transposed.size(1));
}

Status CudaDecoder::add(const CudaStepRows& rows, const at::Tensor& x, const Linear& linear) {
  num_parts_ = parts_of(rows, linear.base);
  if (num_parts_ == 0) return this->linear(rows, x, linear, delta_);
  const at::Tensor& matrix = linear.base.transposed;
  return with_lora_delta(rows, x, linear, [&] {
    return launched(cuda::small_m_gemm({.rows = rows.count,
                                        .terms = matrix.size(0),
                                        .columns = matrix.size(1),
                                        .x = x.const_data_ptr(),
                                        .weight = matrix.const_data_ptr(),
                                        .num_parts = num_parts_,
                                        .parts = parts_.mutable_data_ptr<float>()},
                                       stream_.raw()),
                    "small_m_gemm");
  });
}

Status CudaDecoder::apply_swiglu(const CudaStepRows& rows, const Linear& gate_up) {
  RETURN_IF_ERROR(linear(rows, normed_, gate_up, gate_up_));
  return primerl::apply_swiglu(rows.count, gate_up_, activated_, stream_, lora_delta());
}

Status CudaDecoder::forward(const CudaStepRows& rows, const CudaKvCache& cache,
                            const Attend& attend, const Watch& watch) {
  RETURN_IF_ERROR(launched(cuda::gather_rows({.rows = rows.count,
                                              .width = config_.hidden_size,
                                              .type = type(),
                                              .x = embedding_,
                                              .sources = rows.tokens,
                                              .others = rows.drawn,
                                              .y = x_.mutable_data_ptr()},
                                             stream_.raw()),
                           "embedding"));
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const at::Tensor* delta = i > 0 ? &delta_ : nullptr;
    RETURN_IF_ERROR(norm(rows.count, x_, delta, layer.attention_norm, x_, normed_));
    RETURN_IF_ERROR(linear(rows, normed_, layer.qkv, qkv_));
    if (!rows.is_decode_step)
      RETURN_IF_ERROR(launched(cuda::rotary(rope_args(rows, cache, i), stream_.raw()), "rotary"));
    RETURN_IF_ERROR(attend(i));
    RETURN_IF_ERROR(add(rows, attended_, layer.out));
    if (watch) RETURN_IF_ERROR(watch(i, 0));
    RETURN_IF_ERROR(norm(rows.count, x_, &delta_, layer.mlp_norm, x_, normed_));
    if (layer.mixture.has_value()) {
      num_parts_ = 0;
      RETURN_IF_ERROR(
          mixture_->forward(rows.count, rows.adapters, *layer.mixture, normed_, delta_));
      lora_delta_.reset();
    } else {
      RETURN_IF_ERROR(apply_swiglu(rows, layer.gate_up));
      RETURN_IF_ERROR(add(rows, activated_, layer.down));
    }
    if (watch) RETURN_IF_ERROR(watch(i, 1));
  }
  return ok();
}

Status CudaDecoder::head(int64_t count, const int32_t* picked, const CudaAdapterRows& adapters) {
  const at::Tensor *x = &x_, *delta = &delta_;
  if (picked != nullptr) {
    for (const auto& [from, to] : {std::pair(&x_, &picked_x_), std::pair(&delta_, &picked_delta_)})
      RETURN_IF_ERROR(launched(cuda::gather_rows({.rows = count,
                                                  .width = config_.hidden_size,
                                                  .type = type(),
                                                  .x = from->const_data_ptr(),
                                                  .sources = picked,
                                                  .y = to->mutable_data_ptr()},
                                                 stream_.raw()),
                               "sampled rows"));
    x = &picked_x_;
    delta = &picked_delta_;
  }
  // The sum has its own buffer, so that rows of the pass can be selected again.
  RETURN_IF_ERROR(norm(count, *x, delta, final_norm_, picked_delta_, picked_normed_));
  // Logits rounded to bf16 would be off by their last bit, which is 0.06 near 16: these are fp32.
  RETURN_IF_ERROR(multiply(count, picked_normed_, head_, logits_, stream_));
  if (on_head_ == nullptr || !adapters.applies_adapters()) return ok();
  return adapters_->add_to_logits(*on_head_, adapters, picked_normed_, logits_);
}

at::Tensor CudaDecoder::hidden(int64_t count) const {
  return at::add(x_.narrow(0, 0, count).to(at::kFloat), delta_.narrow(0, 0, count).to(at::kFloat))
      .cpu();
}

}  // namespace primerl
