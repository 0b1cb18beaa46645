#include "kernels/torch/cuda/decoder.h"

#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <cmath>

#include "kernels/models/rope.h"

namespace primerl {
namespace {

constexpr int32_t kCardHeadDimMax = 256;

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

}  // namespace

Status check_card_model(const ModelConfig& config) {
  if (config.moe.has_value())
    return error(Code::kUnavailable,
                 "a mixture of experts ({}) cannot be computed on a CUDA device by this release",
                 config.model_type)
        .note("dense models can; place this one on \"cpu\"");
  if (config.attention.head_dim % 8 != 0 || config.attention.head_dim > kCardHeadDimMax)
    return error(Code::kUnavailable,
                 "head_dim {} cannot be computed on a CUDA device: multiples of 8 up to {} can",
                 config.attention.head_dim, kCardHeadDimMax);
  return ok();
}

cuda::PagedCache CardCache::paged(size_t layer, int32_t size, int32_t head_dim) const {
  const int64_t width = keys.size(2);
  const auto at = static_cast<int64_t>(layer);
  return {keys.select(0, at).mutable_data_ptr(),
          values.select(0, at).mutable_data_ptr(),
          size,
          size * width,
          width,
          head_dim};
}

CardDecoder::CardDecoder(const ModelConfig& config, const CardWeights& weights,
                         const CardAdapters* adapters, const CardStream& stream, int64_t rows_max,
                         int64_t samples_max, int64_t positions_max)
    : config_(config),
      adapters_(adapters),
      stream_(stream),
      type_(weights.type()),
      embedding_(weights.data("embedding")),
      final_norm_(weights.data("final_norm")),
      head_(weights.linear(config.is_tied ? "embedding" : "head")) {
  const auto linear_of = [&](const std::string& name) -> Linear {
    return {weights.linear(name), adapters == nullptr ? nullptr : adapters->find(name)};
  };
  for (int32_t i = 0; i < config.num_layers(); ++i) {
    const std::string attention = fmt::format("layers.{}.attention.", i);
    const std::string mlp = fmt::format("layers.{}.mlp.", i);
    layers_.push_back({weights.data(attention + "norm"), weights.data(mlp + "norm"),
                       weights.data(attention + "q_norm"), weights.data(attention + "k_norm"),
                       linear_of(attention + "qkv"), linear_of(attention + "out"),
                       linear_of(mlp + "gate_up"), linear_of(mlp + "down")});
  }
  const auto rows = [&](int64_t count, int64_t width) {
    return at::empty({count, width}, at::TensorOptions(stream.device()).dtype(type_));
  };
  rows_max = fp8_rows(rows_max);
  for (at::Tensor* of_hidden : {&x_, &addend_, &normed_})
    *of_hidden = rows(rows_max, config.hidden_size);
  qkv_ = rows(rows_max, q_width(config) + 2 * kv_width(config));
  q_ = rows(rows_max, q_width(config));
  attended_ = rows(rows_max, q_width(config));
  gate_up_ = rows(rows_max, 2 * int64_t{config.mlp.width});
  activated_ = rows(rows_max, config.mlp.width);
  for (at::Tensor* picked : {&picked_x_, &picked_addend_, &picked_normed_})
    *picked = rows(samples_max, config.hidden_size);
  logits_ = at::empty({samples_max, config.vocab_size},
                      at::TensorOptions(stream.device()).dtype(at::kFloat));
  make_angles(positions_max);
}

double CardDecoder::bytes_needed(const ModelConfig& config, int64_t element_size, int64_t rows_max,
                                 int64_t samples_max, int64_t positions_max) {
  const auto of_row = static_cast<double>(3 * int64_t{config.hidden_size} + 3 * q_width(config) +
                                          2 * kv_width(config) + 3 * int64_t{config.mlp.width});
  const double sampled = 3.0 * config.hidden_size * static_cast<double>(element_size) +
                         sizeof(float) * static_cast<double>(config.vocab_size);
  return static_cast<double>(rows_max) * of_row * static_cast<double>(element_size) +
         static_cast<double>(samples_max) * sampled +
         static_cast<double>(positions_max) * config.attention.rotary_dim * sizeof(float);
}

/// The CPU's angles (kernels/torch/decoder.cc).
void CardDecoder::make_angles(int64_t positions_max) {
  const auto frequencies = rope_frequencies(config_.rope, config_.attention.rotary_dim);
  const auto half = static_cast<int64_t>(frequencies.size());
  at::Tensor cosine = at::empty({positions_max, half}, at::kFloat);
  at::Tensor sine = at::empty({positions_max, half}, at::kFloat);
  float* to_cosine = cosine.mutable_data_ptr<float>();
  float* to_sine = sine.mutable_data_ptr<float>();
  const double factor = config_.rope.attention_factor;
  for (int64_t position = 0; position < positions_max; ++position)
    for (const float frequency : frequencies) {
      const auto angle = static_cast<double>(static_cast<float>(position) * frequency);
      *to_cosine++ = static_cast<float>(factor * std::cos(angle));
      *to_sine++ = static_cast<float>(factor * std::sin(angle));
    }
  cosine_ = cosine.to(stream_.device());
  sine_ = sine.to(stream_.device());
}

void CardDecoder::use_fp8() {
  for (Layer& layer : layers_)
    for (Linear* linear : {&layer.qkv, &layer.out, &layer.gate_up, &layer.down})
      linear->base.fp8 = fp8_.add(linear->base.transposed.t(), false);
}

cuda::Type CardDecoder::type() const {
  return type_ == at::kFloat ? cuda::Type::kFloat32 : cuda::Type::kBfloat16;
}

/// stream += delta; to = norm(stream).
Status CardDecoder::norm(int64_t rows, at::Tensor& stream, const void* weight, bool has_delta,
                         at::Tensor& delta, at::Tensor& to) const {
  return launched(cuda::rms_norm({.rows = rows,
                                  .width = config_.hidden_size,
                                  .epsilon = static_cast<float>(config_.rms_norm_epsilon),
                                  .type = type(),
                                  .x = stream.const_data_ptr(),
                                  .delta = has_delta ? delta.const_data_ptr() : nullptr,
                                  .weight = weight,
                                  .sum = stream.mutable_data_ptr(),
                                  .y = to.mutable_data_ptr()},
                                 stream_.raw()),
                  "rms_norm");
}

Status CardDecoder::product(int64_t rows, const at::Tensor& x, const CardLinear& weight,
                            const at::Tensor& y) const {
  if (weight.fp8 != nullptr) {
    fp8_product(rows, x, weight.fp8->forward, y, stream_);
    if (weight.bias.defined()) y.narrow(0, 0, rows).add_(weight.bias);
    return ok();
  }
  const int64_t terms = weight.transposed.size(0);
  if (type_ == at::kBFloat16 && rows <= cuda::kFewRowsMax && terms % 8 == 0)
    return launched(cuda::few_rows_product(
                        {.rows = rows,
                         .terms = terms,
                         .columns = weight.transposed.size(1),
                         .x = x.const_data_ptr(),
                         .weight = weight.transposed.const_data_ptr(),
                         .bias = weight.bias.defined() ? weight.bias.const_data_ptr() : nullptr,
                         .y = y.mutable_data_ptr(),
                         .type = y.scalar_type() == at::kFloat ? cuda::Type::kFloat32 : type()},
                        stream_.raw()),
                    "few_rows_product");
  at::Tensor to = y.narrow(0, 0, rows);
  const at::Tensor from = x.narrow(0, 0, rows);
  if (weight.bias.defined())
    at::addmm_out(to, weight.bias, from, weight.transposed);
  else if (y.scalar_type() != type_)
    at::mm_out(to, from, weight.transposed, y.scalar_type());
  else
    at::mm_out(to, from, weight.transposed);
  return ok();
}

Status CardDecoder::linear(const CardRows& rows, const at::Tensor& x, const Linear& linear,
                           const at::Tensor& y) const {
  RETURN_IF_ERROR(product(rows.count, x, linear.base, y));
  if (linear.adapters == nullptr || !rows.adapters.are_there()) return ok();
  return adapters_->add(*linear.adapters, rows.adapters, x, y);
}

Status CardDecoder::forward(const CardRows& rows, const CardCache& cache, const Attend& attend,
                            const Watch& watch) {
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
    RETURN_IF_ERROR(norm(rows.count, x_, layer.attention_norm, i > 0, addend_, normed_));
    RETURN_IF_ERROR(linear(rows, normed_, layer.qkv, qkv_));
    RETURN_IF_ERROR(
        launched(cuda::rotary({.rows = rows.count,
                               .heads = heads_of(config_),
                               .rotary_dim = config_.attention.rotary_dim,
                               .epsilon = static_cast<float>(config_.rms_norm_epsilon),
                               .type = type(),
                               .qkv = qkv_.const_data_ptr(),
                               .q_weight = layer.q_norm,
                               .k_weight = layer.k_norm,
                               .positions = rows.positions,
                               .cosine = cosine_.const_data_ptr<float>(),
                               .sine = sine_.const_data_ptr<float>(),
                               .slots = rows.slots,
                               .q = q_.mutable_data_ptr(),
                               // Rows of a cache follow each other, whatever its blocks are.
                               .cache = cache.paged(i, 1, config_.attention.head_dim)},
                              stream_.raw()),
                 "rotary"));
    RETURN_IF_ERROR(attend(i));
    RETURN_IF_ERROR(linear(rows, attended_, layer.out, addend_));
    if (watch) RETURN_IF_ERROR(watch(i, 0));
    RETURN_IF_ERROR(norm(rows.count, x_, layer.mlp_norm, true, addend_, normed_));
    RETURN_IF_ERROR(linear(rows, normed_, layer.gate_up, gate_up_));
    RETURN_IF_ERROR(launched(cuda::swiglu({.rows = rows.count,
                                           .width = config_.mlp.width,
                                           .type = type(),
                                           .gate_up = gate_up_.const_data_ptr(),
                                           .activated = activated_.mutable_data_ptr()},
                                          stream_.raw()),
                             "swiglu"));
    RETURN_IF_ERROR(linear(rows, activated_, layer.down, addend_));
    if (watch) RETURN_IF_ERROR(watch(i, 1));
  }
  return ok();
}

Status CardDecoder::head(int64_t count, const int32_t* picked) {
  at::Tensor *x = &x_, *addend = &addend_;
  if (picked != nullptr) {
    x = &picked_x_;
    addend = &picked_addend_;
    for (const auto& [from, to] : {std::pair(&x_, x), std::pair(&addend_, addend)})
      RETURN_IF_ERROR(launched(cuda::gather_rows({.rows = count,
                                                  .width = config_.hidden_size,
                                                  .type = type(),
                                                  .x = from->const_data_ptr(),
                                                  .sources = picked,
                                                  .y = to->mutable_data_ptr()},
                                                 stream_.raw()),
                               "sampled rows"));
  }
  // The sum goes to `addend`, so that the rows of the pass can be picked from again.
  RETURN_IF_ERROR(launched(cuda::rms_norm({.rows = count,
                                           .width = config_.hidden_size,
                                           .epsilon = static_cast<float>(config_.rms_norm_epsilon),
                                           .type = type(),
                                           .x = x->const_data_ptr(),
                                           .delta = addend->const_data_ptr(),
                                           .weight = final_norm_,
                                           .sum = picked_addend_.mutable_data_ptr(),
                                           .y = picked_normed_.mutable_data_ptr()},
                                          stream_.raw()),
                           "final norm"));
  // Logits rounded to bf16 would be off by their last bit, which is 0.06 near 16: these are fp32.
  return product(count, picked_normed_, head_, logits_);
}

at::Tensor CardDecoder::hidden(int64_t count) const {
  return at::add(x_.narrow(0, 0, count).to(at::kFloat), addend_.narrow(0, 0, count).to(at::kFloat))
      .cpu();
}

}  // namespace primerl
