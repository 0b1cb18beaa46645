#include "kernels/torch/model_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "graph/base/files.h"
#include "kernels/ops/ops.h"
#include "kernels/torch/models/catalog.h"

namespace primerl {
namespace {

constexpr size_t kConfigBytesMax = size_t{16} << 20;

bool is_given(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  return value != nullptr && !value->is_null();
}

/// A whole number of at least 1; absent is `otherwise`, or an error when that is 0.
Status read_count(const Json& json, std::string_view key, int32_t otherwise, int32_t& count) {
  count = otherwise;
  if (!is_given(json, key) && otherwise > 0) return ok();
  ASSIGN_OR_RETURN(const int64_t value, json.get_int(key));
  if (value < 1 || value > std::numeric_limits<int32_t>::max())
    return error(Code::kInvalid, "'{}' is {}", key, value)
        .note("it is a whole number of at least 1");
  count = static_cast<int32_t>(value);
  return ok();
}

Status read_flag(const Json& json, std::string_view key, bool& flag) {
  if (!is_given(json, key)) return ok();
  ASSIGN_OR_RETURN(flag, json.get_bool(key));
  return ok();
}

/// A finite number above 0; absent leaves `number` as it is.
Status read_positive(const Json& json, std::string_view key, double& number) {
  if (!is_given(json, key)) return ok();
  ASSIGN_OR_RETURN(const double value, json.get_double(key));
  if (!std::isfinite(value) || value <= 0)
    return error(Code::kInvalid, "'{}' is {}", key, value).note("it is a number above 0");
  number = value;
  return ok();
}

Status read_rope_kind(const Json& json, RopeConfig& rope) {
  for (const std::string_view key : {"type", "rope_type"}) {
    if (!is_given(json, key)) continue;
    ASSIGN_OR_RETURN(rope.kind, json.get_string(key));
  }
  if (rope.kind != "default" && rope.kind != "linear" && rope.kind != "llama3")
    return error(Code::kInvalid, "rope type '{}' is not supported", rope.kind)
        .note("known rope types: default, linear, llama3");
  return ok();
}

Status read_rope(const Json& json, RopeConfig& rope) {
  RETURN_IF_ERROR(read_positive(json, "rope_theta", rope.theta));
  const Json* scaling = nullptr;
  for (const std::string_view key : {"rope_scaling", "rope_parameters"})
    if (is_given(json, key)) scaling = json.find(key);
  if (scaling == nullptr) return ok();
  if (!scaling->is_object())
    return error(Code::kInvalid, "the rope parameters are {}, not an object", scaling->kind());
  RETURN_IF_ERROR(read_rope_kind(*scaling, rope));
  RETURN_IF_ERROR(read_positive(*scaling, "rope_theta", rope.theta));
  if (rope.kind == "default") return ok();
  if (!is_given(*scaling, "factor"))
    return error(Code::kInvalid, "rope type '{}' has no 'factor'", rope.kind);
  RETURN_IF_ERROR(read_positive(*scaling, "factor", rope.factor));
  RETURN_IF_ERROR(read_positive(*scaling, "low_freq_factor", rope.low_freq_factor));
  RETURN_IF_ERROR(read_positive(*scaling, "high_freq_factor", rope.high_freq_factor));
  RETURN_IF_ERROR(
      read_positive(*scaling, "original_max_position_embeddings", rope.original_max_positions));
  if (rope.kind == "llama3" && rope.high_freq_factor <= rope.low_freq_factor)
    return error(Code::kInvalid, "'high_freq_factor' {} is not above 'low_freq_factor' {}",
                 rope.high_freq_factor, rope.low_freq_factor);
  return ok();
}

/// `eos_token_id` is a number, a list of numbers, or absent.
Status read_eos(const Json& json, std::vector<int32_t>& ids) {
  if (!is_given(json, "eos_token_id")) return ok();
  const Json& value = *json.find("eos_token_id");
  const Json::Array list = value.is_array() ? value.as_array() : Json::Array{value};
  for (const auto& id : list) {
    if (!id.is_integer() || id.as_int() < 0 || id.as_int() > std::numeric_limits<int32_t>::max())
      return error(Code::kInvalid, "'eos_token_id' holds {}", id.dump());
    const auto number = static_cast<int32_t>(id.as_int());
    if (std::find(ids.begin(), ids.end(), number) == ids.end()) ids.push_back(number);
  }
  return ok();
}

Status read_sizes(const Json& json, ModelConfig& config) {
  RETURN_IF_ERROR(read_count(json, "vocab_size", 0, config.vocab_size));
  RETURN_IF_ERROR(read_count(json, "hidden_size", 0, config.hidden_size));
  RETURN_IF_ERROR(read_count(json, "intermediate_size", 0, config.intermediate_size));
  RETURN_IF_ERROR(read_count(json, "num_hidden_layers", 0, config.num_layers));
  RETURN_IF_ERROR(read_count(json, "num_attention_heads", 0, config.num_heads));
  RETURN_IF_ERROR(read_count(json, "num_key_value_heads", config.num_heads, config.num_kv_heads));
  RETURN_IF_ERROR(read_count(json, "max_position_embeddings", 2048, config.max_positions));
  const int32_t share = std::max(1, config.hidden_size / config.num_heads);
  RETURN_IF_ERROR(read_count(json, "head_dim", share, config.head_dim));
  RETURN_IF_ERROR(read_positive(json, "rms_norm_eps", config.rms_norm_epsilon));
  RETURN_IF_ERROR(read_positive(json, "initializer_range", config.initializer_range));
  RETURN_IF_ERROR(read_flag(json, "tie_word_embeddings", config.tied_embeddings));
  return read_flag(json, "attention_bias", config.attention_bias);
}

Status check_heads(const ModelConfig& config) {
  if (config.num_heads % config.num_kv_heads != 0)
    return error(Code::kInvalid, "{} attention heads are no multiple of {} key-value heads",
                 config.num_heads, config.num_kv_heads);
  if (config.head_dim % 8 != 0 || config.head_dim > kHeadDimMax)
    return error(Code::kInvalid, "'head_dim' {} is not supported", config.head_dim)
        .note(fmt::format("it is a multiple of 8, at most {}", kHeadDimMax));
  return ok();
}

Result<ModelConfig> parse_model_config(Json json) {
  ModelConfig config;
  if (!json.is_object()) return error(Code::kInvalid, "it holds {}, not an object", json.kind());
  ASSIGN_OR_RETURN(config.model_type, json.get_string("model_type"));
  ASSIGN_OR_RETURN(const auto family, find_family(config.model_type));
  RETURN_IF_ERROR(read_sizes(json, config));
  RETURN_IF_ERROR(read_rope(json, config.rope));
  RETURN_IF_ERROR(read_eos(json, config.eos_ids));
  if (is_given(json, "hidden_act")) {
    ASSIGN_OR_RETURN(const auto activation, json.get_string("hidden_act"));
    if (activation != "silu")
      return error(Code::kInvalid, "'hidden_act' is '{}'; only 'silu' is supported", activation);
  }
  RETURN_IF_ERROR(family.read(json, config));
  RETURN_IF_ERROR(check_heads(config));
  config.source = std::move(json);
  return config;
}

}  // namespace

Result<ModelConfig> read_model_config(const std::filesystem::path& folder) {
  const auto file = folder / "config.json";
  ASSIGN_OR_RETURN(const auto text, read_text_file(file, kConfigBytesMax));
  ASSIGN_OR_RETURN(auto json, parse_json(text, file.string()));
  auto config = parse_model_config(std::move(json));
  if (!config.ok()) return std::move(config).error().while_doing(file.string());
  const auto generation = folder / "generation_config.json";
  std::error_code fault;
  if (!std::filesystem::exists(generation, fault)) return config;
  ASSIGN_OR_RETURN(const auto more_text, read_text_file(generation, kConfigBytesMax));
  ASSIGN_OR_RETURN(const auto more, parse_json(more_text, generation.string()));
  Status eos = read_eos(more, config.value().eos_ids);
  if (!eos.ok()) return Error(eos.error()).while_doing(generation.string());
  return config;
}

std::vector<float> rope_frequencies(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  std::vector<float> frequencies;
  for (int32_t i = 0; i < config.head_dim / 2; ++i) {
    const float power = static_cast<float>(2 * i) / static_cast<float>(config.head_dim);
    const float plain = 1.0F / std::pow(static_cast<float>(rope.theta), power);
    const double wavelength = 2 * std::numbers::pi / plain;
    const double low = rope.original_max_positions / rope.low_freq_factor;
    const double high = rope.original_max_positions / rope.high_freq_factor;
    double scaled = plain;
    if (rope.kind == "linear" || (rope.kind == "llama3" && wavelength > low)) {
      scaled = plain / rope.factor;
    } else if (rope.kind == "llama3" && wavelength >= high) {
      const double smooth = (rope.original_max_positions / wavelength - rope.low_freq_factor) /
                            (rope.high_freq_factor - rope.low_freq_factor);
      scaled = (1 - smooth) * plain / rope.factor + smooth * plain;
    }
    frequencies.push_back(static_cast<float>(scaled));
  }
  return frequencies;
}

}  // namespace primerl
