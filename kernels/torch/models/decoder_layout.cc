#include "kernels/torch/models/decoder_layout.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>

#include "graph/base/random.h"

namespace primerl {
namespace {

constexpr int64_t kAlignmentFloats = 16;  // a cache line
constexpr std::string_view kHeadName = "lm_head.weight";

/// Lays tensors out one after the other.
class Builder {
 public:
  Builder(std::vector<ParameterSlice>& slices, int64_t& count) : slices_(slices), count_(count) {}

  /// Starts a new matrix at a cache line.
  int64_t align() {
    count_ = (count_ + kAlignmentFloats - 1) / kAlignmentFloats * kAlignmentFloats;
    return count_;
  }
  void add(std::string name, std::vector<int64_t> shape) {
    int64_t size = 1;
    for (const int64_t extent : shape) size *= extent;
    slices_.push_back({std::move(name), std::move(shape), count_, size});
    count_ += size;
  }
  int64_t one(std::string name, std::vector<int64_t> shape) {
    const int64_t offset = align();
    add(std::move(name), std::move(shape));
    return offset;
  }

 private:
  std::vector<ParameterSlice>& slices_;
  int64_t& count_;
};

LayerOffsets add_layer(Builder& builder, const ModelConfig& c, const std::string& layer) {
  const int64_t q = static_cast<int64_t>(c.num_heads) * c.head_dim;
  const int64_t kv = static_cast<int64_t>(c.num_kv_heads) * c.head_dim;
  const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
  LayerOffsets at;
  at.input_norm = builder.one(layer + "input_layernorm.weight", {c.hidden_size});
  at.qkv = builder.one(attention + "q_proj.weight", {q, c.hidden_size});
  builder.add(attention + "k_proj.weight", {kv, c.hidden_size});
  builder.add(attention + "v_proj.weight", {kv, c.hidden_size});
  if (c.attention_bias) {
    at.qkv_bias = builder.one(attention + "q_proj.bias", {q});
    builder.add(attention + "k_proj.bias", {kv});
    builder.add(attention + "v_proj.bias", {kv});
    at.out_bias = builder.one(attention + "o_proj.bias", {c.hidden_size});
  }
  if (c.qk_norm) {
    at.q_norm = builder.one(attention + "q_norm.weight", {c.head_dim});
    at.k_norm = builder.one(attention + "k_norm.weight", {c.head_dim});
  }
  at.out = builder.one(attention + "o_proj.weight", {c.hidden_size, q});
  at.mlp_norm = builder.one(layer + "post_attention_layernorm.weight", {c.hidden_size});
  at.gate_up = builder.one(mlp + "gate_proj.weight", {c.intermediate_size, c.hidden_size});
  builder.add(mlp + "up_proj.weight", {c.intermediate_size, c.hidden_size});
  at.down = builder.one(mlp + "down_proj.weight", {c.hidden_size, c.intermediate_size});
  if (c.mlp_bias) {
    at.gate_up_bias = builder.one(mlp + "gate_proj.bias", {c.intermediate_size});
    builder.add(mlp + "up_proj.bias", {c.intermediate_size});
    at.down_bias = builder.one(mlp + "down_proj.bias", {c.hidden_size});
  }
  return at;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t exponent = bits >> 10 & 0x1FU, mantissa = bits & 0x3FFU;
  if (exponent == 0) {
    const float small = static_cast<float>(mantissa) * 5.9604644775390625e-8F;  // 2^-24
    return sign != 0 ? -small : small;
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  const uint32_t value = sign | wide << 23 | mantissa << 13;
  float result;
  std::memcpy(&result, &value, sizeof(result));
  return result;
}

float bfloat_to_float(uint16_t bits) {
  const uint32_t value = static_cast<uint32_t>(bits) << 16;
  float result;
  std::memcpy(&result, &value, sizeof(result));
  return result;
}

void convert(const WeightTensor& tensor, int64_t count, float* to) {
  const std::byte* from = tensor.bytes.bytes().data();
  if (tensor.type == DataType::kF32) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * i, sizeof(bits));
    to[i] = tensor.type == DataType::kF16 ? half_to_float(bits) : bfloat_to_float(bits);
  }
}

Status check_tensor(const ParameterSlice& slice, const WeightTensor& tensor) {
  if (tensor.shape != slice.shape)
    return error(Code::kInvalid, "tensor '{}' has shape {}, the model needs {}", slice.name,
                 shape_text(tensor.shape), shape_text(slice.shape));
  if (tensor.type != DataType::kF32 && tensor.type != DataType::kF16 &&
      tensor.type != DataType::kBF16)
    return error(Code::kInvalid, "tensor '{}' has type {}", slice.name, to_string(tensor.type))
        .note("known types: F32, F16, BF16");
  if (tensor.bytes.size() != static_cast<size_t>(slice.count) * size_in_bytes(tensor.type))
    return error(Code::kInvalid, "tensor '{}' of shape {} has {} bytes", slice.name,
                 shape_text(tensor.shape), tensor.bytes.size());
  return ok();
}

}  // namespace

DecoderLayout::DecoderLayout(const ModelConfig& config) {
  Builder builder(slices, count);
  embedding = builder.one("model.embed_tokens.weight", {config.vocab_size, config.hidden_size});
  for (int32_t i = 0; i < config.num_layers; ++i)
    layers.push_back(add_layer(builder, config, fmt::format("model.layers.{}.", i)));
  final_norm = builder.one("model.norm.weight", {config.hidden_size});
  head = config.tied_embeddings
             ? embedding
             : builder.one(std::string(kHeadName), {config.vocab_size, config.hidden_size});
  builder.align();
  std::sort(slices.begin(), slices.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
}

Status fill_parameters(const DecoderLayout& layout, const std::vector<WeightTensor>& tensors,
                       float* buffer) {
  const bool tied = layout.head == layout.embedding;
  std::vector<const WeightTensor*> sources;
  size_t next = 0;
  for (const auto& slice : layout.slices) {
    if (tied && next < tensors.size() && tensors[next].name == kHeadName) ++next;
    if (next == tensors.size() || tensors[next].name > slice.name)
      return error(Code::kInvalid, "tensor '{}' of shape {} is missing", slice.name,
                   shape_text(slice.shape));
    if (tensors[next].name < slice.name)
      return error(Code::kInvalid, "tensor '{}' of shape {} is not part of the model",
                   tensors[next].name, shape_text(tensors[next].shape));
    RETURN_IF_ERROR(check_tensor(slice, tensors[next]));
    sources.push_back(&tensors[next++]);
  }
  if (next < tensors.size())
    return error(Code::kInvalid, "tensor '{}' of shape {} is not part of the model",
                 tensors[next].name, shape_text(tensors[next].shape));
  for (size_t i = 0; i < sources.size(); ++i)
    convert(*sources[i], layout.slices[i].count, buffer + layout.slices[i].offset);
  return ok();
}

void randomize_parameters(const DecoderLayout& layout, uint64_t seed, double deviation,
                          float* buffer) {
  for (const auto& slice : layout.slices) {
    RandomStream random(mix(seed, stable_hash(slice.name)));
    float* values = buffer + slice.offset;
    const bool is_bias = slice.name.ends_with(".bias");
    if (slice.shape.size() < 2) {
      std::fill(values, values + slice.count, is_bias ? 0.0F : 1.0F);
      continue;
    }
    // Box and Muller: two uniforms make one normal number; the first is never 0.
    for (int64_t i = 0; i < slice.count; ++i) {
      const double radius = std::sqrt(-2 * std::log(1 - random.uniform()));
      const double angle = 2 * std::numbers::pi * random.uniform();
      values[i] = static_cast<float>(deviation * radius * std::cos(angle));
    }
  }
}

std::vector<WeightTensor> copy_parameters(const DecoderLayout& layout, const float* buffer) {
  auto copy = std::make_shared<std::vector<float>>(buffer, buffer + layout.count);
  std::vector<WeightTensor> tensors;
  tensors.reserve(layout.slices.size());
  for (const auto& slice : layout.slices) {
    const auto bytes =
        std::as_bytes(std::span(copy->data() + slice.offset, static_cast<size_t>(slice.count)));
    tensors.push_back({slice.name, DataType::kF32, slice.shape, Blob(copy, bytes)});
  }
  return tensors;
}

}  // namespace primerl
