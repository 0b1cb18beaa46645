#include "kernels/models/tensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <optional>
#include <tuple>
#include <utility>

#include "graph/base/assert.h"
#include "graph/base/random.h"
#include "kernels/weights/safetensors.h"

namespace primerl {
namespace {

constexpr int64_t kAlignmentElements = 32;  // two cache lines of fp32, one of bf16
constexpr std::string_view kHeadName = "lm_head.weight";
constexpr std::string_view kEmbeddingName = "model.embed_tokens.weight";
constexpr size_t kNamedMax = 20;  // tensors listed in one error

int64_t count_of(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace

/// Lays out parameters one after the other and divides them into Hugging Face tensors.
class TensorTableBuilder {
 public:
  explicit TensorTableBuilder(TensorTable& table) : table_(table) {}

  void add(std::string name, ParameterKind kind, std::vector<int64_t> shape,
           bool is_trained = true) {
    Parameter parameter{std::move(name), kind, std::move(shape), is_trained, 0, 0};
    parameter.count = count_of(parameter.shape);
    table_.parameters_.push_back(std::move(parameter));
    filled_ = 0;
  }
  /// Adds a tensor: the next part of the last parameter.
  void cut(std::string name, std::vector<int64_t> shape) {
    const int64_t count = count_of(shape);
    table_.slices_.push_back(
        {std::move(name), std::move(shape), table_.parameters_.size() - 1, filled_, count});
    filled_ += count;
  }
  /// Adds another name for the whole last parameter.
  void fuse(std::string name) {
    const Parameter& last = table_.parameters_.back();
    table_.fused_.push_back(
        {std::move(name), last.shape, table_.parameters_.size() - 1, 0, last.count});
  }
  /// Adds a parameter that is one tensor.
  void one(std::string name, ParameterKind kind, std::vector<int64_t> shape,
           const std::string& tensor, bool is_trained = true) {
    add(std::move(name), kind, shape, is_trained);
    cut(tensor, std::move(shape));
  }

  /// Assigns all offsets: trained parameters first.
  void place() {
    for (const bool is_trained : {true, false}) {
      for (auto& parameter : table_.parameters_) {
        if (parameter.is_trained != is_trained) continue;
        parameter.offset = table_.count_;
        table_.count_ +=
            (parameter.count + kAlignmentElements - 1) / kAlignmentElements * kAlignmentElements;
      }
      if (is_trained) table_.trained_count_ = table_.count_;
    }
    for (auto* list : {&table_.slices_, &table_.fused_}) {
      for (auto& slice : *list) slice.offset += table_.parameters_[slice.parameter].offset;
      std::sort(list->begin(), list->end(),
                [](const auto& a, const auto& b) { return a.name < b.name; });
    }
  }

 private:
  TensorTable& table_;
  int64_t filled_ = 0;  // assigned elements of the last parameter
};

namespace {

/// Names of a stage's tensors in the files of the families so far.
struct StageNames {
  std::string ours;   // "layers.3.attention."
  std::string layer;  // "model.layers.3."
  std::string norm;   // the stage's norm
};

void add_attention(TensorTableBuilder& to, const ModelConfig& config, const AttentionSpec& spec,
                   const StageNames& names) {
  constexpr auto kKind = ParameterKind::kAttention;
  const int64_t hidden = config.hidden_size, d = spec.head_dim;
  const int64_t q = spec.num_heads * d, kv = spec.num_kv_heads * d;
  const std::string theirs = names.layer + "self_attn.";
  to.add(names.ours + "qkv", kKind, {q + 2 * kv, hidden});
  to.cut(theirs + "q_proj.weight", {q, hidden});
  to.cut(theirs + "k_proj.weight", {kv, hidden});
  to.cut(theirs + "v_proj.weight", {kv, hidden});
  if (spec.has_qkv_bias) {
    to.add(names.ours + "qkv_bias", kKind, {q + 2 * kv});
    to.cut(theirs + "q_proj.bias", {q});
    to.cut(theirs + "k_proj.bias", {kv});
    to.cut(theirs + "v_proj.bias", {kv});
  }
  if (spec.has_qk_norm) {
    to.one(names.ours + "q_norm", ParameterKind::kNorm, {d}, theirs + "q_norm.weight");
    to.one(names.ours + "k_norm", ParameterKind::kNorm, {d}, theirs + "k_norm.weight");
  }
  to.one(names.ours + "out", kKind, {hidden, q}, theirs + "o_proj.weight");
  if (spec.has_out_bias) to.one(names.ours + "out_bias", kKind, {hidden}, theirs + "o_proj.bias");
}

void add_mlp(TensorTableBuilder& to, const ModelConfig& config, const MlpSpec& spec,
             const StageNames& names, ParameterKind kind, const std::string& theirs) {
  const int64_t hidden = config.hidden_size, width = spec.width;
  to.add(names.ours + "gate_up", kind, {2 * width, hidden});
  to.cut(theirs + "gate_proj.weight", {width, hidden});
  to.cut(theirs + "up_proj.weight", {width, hidden});
  if (spec.has_bias) {
    to.add(names.ours + "gate_up_bias", kind, {2 * width});
    to.cut(theirs + "gate_proj.bias", {width});
    to.cut(theirs + "up_proj.bias", {width});
  }
  to.one(names.ours + "down", kind, {hidden, width}, theirs + "down_proj.weight");
  if (spec.has_bias) to.one(names.ours + "down_bias", kind, {hidden}, theirs + "down_proj.bias");
}

void add_moe(TensorTableBuilder& to, const ModelConfig& config, const MoeSpec& spec,
             const StageNames& names) {
  const int64_t hidden = config.hidden_size, width = spec.width, experts = spec.num_experts;
  const std::string theirs = names.layer + "mlp.";
  to.one(names.ours + "router", ParameterKind::kRouter, {experts, hidden}, theirs + "gate.weight");
  if (spec.has_selection_bias)
    to.one(names.ours + "selection_bias", ParameterKind::kRouter, {experts},
           theirs + "gate.e_score_correction_bias", false);
  to.add(names.ours + "experts_gate_up", ParameterKind::kExperts, {experts, 2 * width, hidden});
  for (int64_t e = 0; e < experts; ++e) {
    to.cut(fmt::format("{}experts.{}.gate_proj.weight", theirs, e), {width, hidden});
    to.cut(fmt::format("{}experts.{}.up_proj.weight", theirs, e), {width, hidden});
  }
  to.fuse(theirs + "experts.gate_up_proj");
  to.add(names.ours + "experts_down", ParameterKind::kExperts, {experts, hidden, width});
  for (int64_t e = 0; e < experts; ++e)
    to.cut(fmt::format("{}experts.{}.down_proj.weight", theirs, e), {hidden, width});
  to.fuse(theirs + "experts.down_proj");
  if (spec.shared_width == 0) return;
  StageNames shared = names;
  shared.ours += "shared_";
  add_mlp(to, config, {spec.shared_width, false}, shared, ParameterKind::kSharedExpert,
          theirs + "shared_experts.");
}

void add_stage(TensorTableBuilder& to, const ModelConfig& config, const StageSpec& stage,
               const StageNames& names) {
  const int64_t hidden = config.hidden_size;
  to.one(names.ours + "norm", ParameterKind::kNorm, {hidden}, names.layer + names.norm);
  if (const auto* attention = std::get_if<AttentionSpec>(&stage))
    return add_attention(to, config, *attention, names);
  if (const auto* mlp = std::get_if<MlpSpec>(&stage))
    return add_mlp(to, config, *mlp, names, ParameterKind::kMlp, names.layer + "mlp.");
  add_moe(to, config, std::get<MoeSpec>(stage), names);
}

Status check_tensor(const TensorSlice& slice, const WeightTensor& tensor) {
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

// Eight at a time: conversion is half of the time to load large folders of this type.
using Bits8 = uint16_t __attribute__((vector_size(16)));
using Words8 = uint32_t __attribute__((vector_size(32)));

float bfloat_to_float(uint16_t bits) {
  const uint32_t value = static_cast<uint32_t>(bits) << 16;
  float result;
  std::memcpy(&result, &value, sizeof(result));
  return result;
}

const TensorSlice* find_slice(std::span<const TensorSlice> slices, std::string_view name) {
  const auto at =
      std::lower_bound(slices.begin(), slices.end(), name,
                       [](const auto& slice, auto wanted) { return slice.name < wanted; });
  return at != slices.end() && at->name == name ? &*at : nullptr;
}

/// Tensors of "model.layers.N." for N of the unused layers.
bool is_unused(std::string_view name, std::pair<int32_t, int32_t> unused) {
  constexpr std::string_view kPrefix = "model.layers.";
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  int64_t layer = 0;
  size_t digits = 0;
  for (; digits < name.size() && name[digits] >= '0' && name[digits] <= '9' && digits < 9; ++digits)
    layer = layer * 10 + (name[digits] - '0');
  return digits > 0 && digits < name.size() && name[digits] == '.' && layer >= unused.first &&
         layer - unused.first < unused.second;
}

/// Tables of angles that older programs saved; they follow from config.json.
bool is_rope_buffer(std::string_view name) {
  for (const std::string_view end : {".rotary_emb.inv_freq", ".rotary_emb.original_inv_freq",
                                     ".rotary_emb.cos_cached", ".rotary_emb.sin_cached"})
    if (name.ends_with(end)) return true;
  return false;
}

/// Whether a tied model's one matrix is there only under the name of its head.
bool is_under_heads_name(const TensorTable& table, const std::vector<WeightTensor>& tensors) {
  return table.is_tied() && table.find("embedding") != nullptr &&
         !std::ranges::binary_search(tensors, kEmbeddingName, {}, &WeightTensor::name);
}

/// Collects mismatches for one error.
class Faults {
 public:
  void add(Error fault) {
    if (!first_.has_value())
      first_ = std::move(fault);
    else if (++more_ < kNamedMax)
      std::ignore = std::move(*first_).note(fault.message());
  }
  std::optional<Error> take() && {
    if (first_.has_value() && more_ >= kNamedMax)
      std::ignore = std::move(*first_).note(fmt::format("and {} more", more_ + 1 - kNamedMax));
    return std::move(first_);
  }

 private:
  std::optional<Error> first_;
  size_t more_ = 0;
};

}  // namespace

std::string_view to_string(ParameterKind kind) {
  switch (kind) {
    case ParameterKind::kEmbedding:
      return "embedding";
    case ParameterKind::kHead:
      return "head";
    case ParameterKind::kNorm:
      return "norms";
    case ParameterKind::kAttention:
      return "attention";
    case ParameterKind::kMlp:
      return "mlp";
    case ParameterKind::kExperts:
      return "experts";
    case ParameterKind::kSharedExpert:
      return "shared experts";
    case ParameterKind::kRouter:
      return "routers";
  }
  return "";
}

TensorTable::TensorTable(const ModelConfig& config)
    : unused_layers_(config.num_layers(), config.num_unused_layers) {
  TensorTableBuilder builder(*this);
  const int64_t vocab = config.vocab_size, hidden = config.hidden_size;
  builder.one("embedding", ParameterKind::kEmbedding, {vocab, hidden}, std::string(kEmbeddingName));
  for (size_t i = 0; i < config.layers.size(); ++i) {
    std::string norm = "input_layernorm.weight";
    for (const auto& stage : config.layers[i].stages) {
      add_stage(builder, config, stage,
                {fmt::format("layers.{}.{}.", i, stage_name(stage)),
                 fmt::format("model.layers.{}.", i), norm});
      norm = "post_attention_layernorm.weight";
    }
  }
  builder.one("final_norm", ParameterKind::kNorm, {hidden}, "model.norm.weight");
  if (!config.is_tied)
    builder.one("head", ParameterKind::kHead, {vocab, hidden}, std::string(kHeadName));
  builder.place();
}

TensorTable::TensorTable(const std::vector<Parameter>& parameters) {
  TensorTableBuilder builder(*this);
  for (const auto& one : parameters)
    builder.one(one.name, one.kind, one.shape, one.name, one.is_trained);
  builder.place();
}

const Parameter* TensorTable::find(std::string_view name) const {
  for (const auto& parameter : parameters_)
    if (parameter.name == name) return &parameter;
  return nullptr;
}

const Parameter& TensorTable::at(std::string_view name) const {
  const Parameter* found = find(name);
  CHECK(found != nullptr, fmt::format("the model has no parameter '{}'", name));
  return *found;
}

int64_t TensorTable::num_parameters() const {
  int64_t count = 0;
  for (const auto& parameter : parameters_) count += parameter.count;
  return count;
}

Result<TensorMatch> match_tensors(const TensorTable& table,
                                  const std::vector<WeightTensor>& tensors) {
  TensorMatch match;
  Faults faults;
  std::vector<bool> is_filled(table.slices().size()), is_fused(table.parameters().size());
  const bool is_renamed = is_under_heads_name(table, tensors);
  for (const auto& tensor : tensors) {
    const bool is_head = tensor.name == kHeadName;
    const TensorSlice* slice =
        find_slice(table.slices(), is_head && is_renamed ? kEmbeddingName : tensor.name);
    if (slice != nullptr) {
      is_filled[static_cast<size_t>(slice - table.slices().data())] = true;
    } else if (slice = find_slice(table.fused(), tensor.name); slice != nullptr) {
      is_fused[slice->parameter] = true;
    } else if (is_unused(tensor.name, table.unused_layers())) {
      match.unused.push_back(&tensor);
      continue;
    } else if (is_head && table.find("embedding") != nullptr) {
      continue;  // allowed: the model is tied
    } else if (is_rope_buffer(tensor.name) && table.find("embedding") != nullptr) {
      match.buffers.push_back(&tensor);
      continue;
    } else {
      faults.add(error(Code::kInvalid, "tensor '{}' of shape {} is not part of the model",
                       tensor.name, shape_text(tensor.shape)));
      continue;
    }
    if (Status checked = check_tensor(*slice, tensor); !checked.ok()) faults.add(checked.error());
    match.sources.push_back({&tensor, slice});
  }
  for (size_t i = 0; i < is_filled.size(); ++i) {
    const TensorSlice& slice = table.slices()[i];
    if (is_filled[i] && is_fused[slice.parameter])
      faults.add(error(Code::kInvalid, "tensor '{}' is there twice, alone and fused", slice.name));
    if (!is_filled[i] && !is_fused[slice.parameter])
      faults.add(error(Code::kInvalid, "tensor '{}' of shape {} is missing", slice.name,
                       shape_text(slice.shape)));
  }
  if (auto fault = std::move(faults).take(); fault.has_value()) return std::move(*fault);
  return match;
}

Status check_model_folder(const std::filesystem::path& folder) {
  ASSIGN_OR_RETURN(const auto config, read_model_config(folder));
  RETURN_IF_ERROR(check_is_supported(config));
  for (const int32_t id : config.eos_ids)
    if (id >= config.vocab_size)
      return error(
                 Code::kInvalid,
                 "{}: 'eos_token_id' of it or of generation_config.json has {}, 'vocab_size' is {}",
                 (folder / "config.json").string(), id, config.vocab_size)
          .note("no sequence could end with that token");
  ASSIGN_OR_RETURN(const auto tensors, read_model_tensors(folder));
  const auto match = match_tensors(TensorTable(config), tensors);
  return match.ok() ? ok() : Status(match.error());
}

std::vector<std::string> unused_tensors_text(const std::filesystem::path& folder,
                                             const ModelConfig& config) {
  const auto tensors = read_model_tensors(folder);
  if (!tensors.ok()) return {};
  const auto match = match_tensors(TensorTable(config), *tensors);
  if (!match.ok() || match->buffers.empty()) return {};
  return {fmt::format("{} tensors of its weights ('{}', ...) follow from config.json: not read",
                      match->buffers.size(), match->buffers.front()->name)};
}

void convert_to_f32(const WeightTensor& tensor, int64_t begin, int64_t count, float* to) {
  const std::byte* from =
      tensor.bytes.bytes().data() + begin * static_cast<int64_t>(size_in_bytes(tensor.type));
  if (tensor.type == DataType::kF32) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  const auto bits_of = [from](int64_t i) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * i, sizeof(bits));
    return bits;
  };
  int64_t done = 0;
  if (tensor.type == DataType::kF16) {
    for (; done < count; ++done) to[done] = half_to_float(bits_of(done));
    return;
  }
  for (; done + 8 <= count; done += 8) {
    Bits8 narrow;
    std::memcpy(&narrow, from + 2 * done, sizeof(narrow));
    const Words8 wide = __builtin_convertvector(narrow, Words8) << 16;
    std::memcpy(to + done, &wide, sizeof(wide));
  }
  for (; done < count; ++done) to[done] = bfloat_to_float(bits_of(done));
}

Status fill_parameters(const TensorTable& table, const std::vector<WeightTensor>& tensors,
                       float* buffer) {
  ASSIGN_OR_RETURN(const auto match, match_tensors(table, tensors));
  for (const auto& [tensor, slice] : match.sources)
    convert_to_f32(*tensor, 0, slice->count, buffer + slice->offset);
  return ok();
}

Status fill_untrained(const TensorTable& table, const std::vector<WeightTensor>& tensors,
                      float* buffer) {
  for (const TensorSlice& slice : table.slices()) {
    if (slice.offset < table.trained_count()) continue;
    const auto found = std::ranges::lower_bound(tensors, slice.name, {}, &WeightTensor::name);
    if (found == tensors.end() || found->name != slice.name)
      return error(Code::kInvalid, "tensor '{}' is missing", slice.name);
    convert_to_f32(*found, 0, slice.count, buffer + slice.offset - table.trained_count());
  }
  return ok();
}

void randomize_parameters(const TensorTable& table, uint64_t seed, double deviation,
                          float* buffer) {
  for (const auto& slice : table.slices()) {
    RandomStream random(mix(seed, stable_hash(slice.name)));
    float* values = buffer + slice.offset;
    const bool is_bias = slice.name.ends_with("bias");
    if (slice.shape.size() < 2) {
      std::fill(values, values + slice.count, is_bias ? 0.0F : 1.0F);
      continue;
    }
    // Box-Muller: two uniform numbers give one normal number; the first is never 0.
    for (int64_t i = 0; i < slice.count; ++i) {
      const double radius = std::sqrt(-2 * std::log(1 - random.uniform()));
      const double angle = 2 * std::numbers::pi * random.uniform();
      values[i] = static_cast<float>(deviation * radius * std::cos(angle));
    }
  }
}

std::vector<WeightTensor> view_parameters(const TensorTable& table, const float* buffer,
                                          std::shared_ptr<const void> owner) {
  std::vector<WeightTensor> tensors;
  tensors.reserve(table.slices().size());
  for (const auto& slice : table.slices()) {
    const auto bytes =
        std::as_bytes(std::span(buffer + slice.offset, static_cast<size_t>(slice.count)));
    tensors.push_back({slice.name, DataType::kF32, slice.shape, Blob(owner, bytes)});
  }
  return tensors;
}

std::vector<WeightTensor> copy_parameters(const TensorTable& table, const float* buffer) {
  auto copy = std::make_shared<const std::vector<float>>(buffer, buffer + table.count());
  return view_parameters(table, copy->data(), copy);
}

}  // namespace primerl
