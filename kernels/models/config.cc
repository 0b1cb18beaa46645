#include "kernels/models/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "graph/base/files.h"
#include "graph/base/sha256.h"
#include "kernels/models/config_keys.h"
#include "kernels/models/families/families.h"

namespace primerl {
namespace {

constexpr size_t kConfigBytesMax = size_t{16} << 20;
constexpr int32_t kLayersMax = 4096;
constexpr double kTensorsMax = 1 << 20;    // per model; a model of a trillion parameters has 70,000
constexpr double kParametersMax = 0x1p53;  // so that no size overflows
constexpr int32_t kHeadDimMax = 256;       // limit of kernels/ops
constexpr int32_t kExpertsMax = 1024;      // limit of kernels/ops

/// `eos_token_id` is a number, a list of numbers, or absent.
Status read_eos(const Json* value, std::vector<int32_t>& ids) {
  if (value == nullptr || value->is_null()) return ok();
  const Json::Array list = value->is_array() ? value->as_array() : Json::Array{*value};
  for (const auto& id : list) {
    if (!id.is_integer() || id.as_int() < 0 || id.as_int() > std::numeric_limits<int32_t>::max())
      return error(Code::kInvalid, "'eos_token_id' holds {}", id.dump());
    const auto number = static_cast<int32_t>(id.as_int());
    if (std::find(ids.begin(), ids.end(), number) == ids.end()) ids.push_back(number);
  }
  return ok();
}

/// The number of attention heads if the key is null, and in some families if it is absent.
Status read_kv_heads(ConfigReader& reader, const ModelFamily& family, AttentionSpec& attention) {
  attention.num_kv_heads = attention.num_heads;
  const bool may_lack = family.has_all_kv_heads || reader.is_null("num_key_value_heads");
  return may_lack ? reader.read_count("num_key_value_heads", attention.num_kv_heads)
                  : reader.need_count("num_key_value_heads", attention.num_kv_heads);
}

Status read_sizes(ConfigReader& reader, const ModelFamily& family, ModelConfig& config) {
  AttentionSpec& attention = config.attention;
  int32_t num_layers = 0;
  RETURN_IF_ERROR(reader.need_count("vocab_size", config.vocab_size));
  RETURN_IF_ERROR(reader.need_count("hidden_size", config.hidden_size));
  RETURN_IF_ERROR(reader.need_count("intermediate_size", config.mlp.width));
  RETURN_IF_ERROR(reader.need_count("num_hidden_layers", num_layers));
  RETURN_IF_ERROR(reader.need_count("num_attention_heads", attention.num_heads));
  if (num_layers > kLayersMax)
    return error(Code::kInvalid, "'num_hidden_layers' is {}", num_layers)
        .note(fmt::format("it is at most {}", kLayersMax));
  RETURN_IF_ERROR(read_kv_heads(reader, family, attention));
  config.max_positions = 2048;
  RETURN_IF_ERROR(reader.read_count("max_position_embeddings", config.max_positions));
  attention.head_dim =
      family.head_dim > 0 ? family.head_dim : std::max(1, config.hidden_size / attention.num_heads);
  RETURN_IF_ERROR(reader.read_count("head_dim", attention.head_dim));
  config.rms_norm_epsilon = family.rms_norm_epsilon;
  RETURN_IF_ERROR(reader.read_positive("rms_norm_eps", config.rms_norm_epsilon));
  RETURN_IF_ERROR(reader.read_positive("initializer_range", config.initializer_range));
  config.layers.resize(static_cast<size_t>(num_layers));
  return reader.read_flag("tie_word_embeddings", config.is_tied);
}

Status check_heads(const AttentionSpec& attention) {
  if (attention.num_heads % attention.num_kv_heads != 0)
    return error(Code::kInvalid, "{} attention heads are not a multiple of {} key-value heads",
                 attention.num_heads, attention.num_kv_heads);
  if (attention.rotary_dim < 2 || attention.rotary_dim % 2 != 0 ||
      attention.rotary_dim > attention.head_dim)
    return error(Code::kInvalid, "{} of the {} channels of a head would be rotated",
                 attention.rotary_dim, attention.head_dim)
        .note("rotary embedding rotates an even number of them");
  return ok();
}

double parameters_of(const ModelConfig& config, const StageSpec& stage) {
  const double hidden = config.hidden_size;
  if (const auto* attention = std::get_if<AttentionSpec>(&stage))
    return hidden * attention->head_dim *
           (2.0 * attention->num_heads + 2.0 * attention->num_kv_heads);
  if (const auto* mlp = std::get_if<MlpSpec>(&stage)) return 3 * hidden * mlp->width;
  const auto& moe = std::get<MoeSpec>(stage);
  return 3 * hidden * (static_cast<double>(moe.num_experts) * moe.width + moe.shared_width);
}

/// Sizes are untrusted input: what is allocated by them must stay within limits.
Status check_sizes(const ModelConfig& config) {
  double parameters = 2.0 * config.vocab_size * config.hidden_size, tensors = 3;
  for (const auto& layer : config.layers)
    for (const auto& stage : layer.stages) {
      parameters += parameters_of(config, stage);
      const auto* moe = std::get_if<MoeSpec>(&stage);
      tensors += 12 + (moe == nullptr ? 0 : 3.0 * moe->num_experts);
    }
  if (parameters > kParametersMax)
    return error(Code::kInvalid, "its sizes make {:.3g} parameters", parameters)
        .note(fmt::format("there are at most {:.3g}", kParametersMax));
  if (tensors > kTensorsMax)
    return error(Code::kInvalid, "its layers and experts make {:.0f} tensors", tensors)
        .note(fmt::format("there are at most {:.0f}", kTensorsMax));
  return ok();
}

/// Layers without a feed-forward chosen by the family get the dense one.
void complete_layers(ModelConfig& config) {
  for (auto& layer : config.layers) {
    layer.stages.insert(layer.stages.begin(), config.attention);
    if (layer.stages.size() == 1) layer.stages.emplace_back(config.mlp);
  }
}

Result<ModelConfig> parse_model_config(Json json) {
  ModelConfig config;
  if (!json.is_object()) return error(Code::kInvalid, "it holds {}, not an object", json.kind());
  ASSIGN_OR_RETURN(config.model_type, json.get_string("model_type"));
  ASSIGN_OR_RETURN(const auto family, find_family(config.model_type));
  ConfigReader reader(json);
  ignore_descriptions(reader);
  RETURN_IF_ERROR(check_arithmetic(reader));
  RETURN_IF_ERROR(read_sizes(reader, family, config));
  RETURN_IF_ERROR(read_rope(reader, config.max_positions, config.rope, config.unknown_keys));
  RETURN_IF_ERROR(read_eos(reader.find("eos_token_id"), config.eos_ids));
  RETURN_IF_ERROR(family.read(reader, config));
  if (config.rope.partial_factor == 0) config.rope.partial_factor = 1;
  config.attention.rotary_dim =
      static_cast<int32_t>(config.attention.head_dim * config.rope.partial_factor);
  for (auto& key : reader.unknown()) config.unknown_keys.push_back(std::move(key));
  RETURN_IF_ERROR(check_heads(config.attention));
  complete_layers(config);
  RETURN_IF_ERROR(check_sizes(config));
  if (const Json* types = json.find("layer_types");
      types != nullptr && types->is_array() &&
      std::ssize(types->as_array()) != std::ssize(config.layers))
    return error(Code::kInvalid, "'layer_types' has {} entries for {} layers",
                 types->as_array().size(), config.layers.size());
  config.source = std::move(json);
  return config;
}

}  // namespace

std::string_view stage_name(const StageSpec& stage) {
  if (std::holds_alternative<AttentionSpec>(stage)) return "attention";
  return std::holds_alternative<MlpSpec>(stage) ? "mlp" : "moe";
}

int32_t num_mixtures(const ModelConfig& config) {
  int32_t count = 0;
  for (const LayerSpec& layer : config.layers)
    for (const StageSpec& stage : layer.stages)
      count += std::holds_alternative<MoeSpec>(stage) ? 1 : 0;
  return count;
}

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
  Status eos = read_eos(more.find("eos_token_id"), config.value().eos_ids);
  if (!eos.ok()) return Error(eos.error()).while_doing(generation.string());
  return config;
}

std::string fingerprint(const ModelConfig& config) {
  const std::string text = config.source.dump();
  std::string hex;
  for (const std::byte b : sha256(std::as_bytes(std::span(text))))
    hex += fmt::format("{:02x}", static_cast<unsigned>(b));
  return hex;
}

bool is_same_model(const ModelConfig& a, const ModelConfig& b) {
  return a.model_type == b.model_type && a.vocab_size == b.vocab_size &&
         a.hidden_size == b.hidden_size && a.rms_norm_epsilon == b.rms_norm_epsilon &&
         a.is_tied == b.is_tied && a.rope == b.rope && a.layers == b.layers;
}

std::string unknown_keys_text(const ModelConfig& config) {
  if (config.unknown_keys.empty()) return "";
  return fmt::format("{} of config.json {} not known for model_type '{}'",
                     fmt::join(config.unknown_keys, ", "),
                     config.unknown_keys.size() == 1 ? "is" : "are", config.model_type);
}

Status check_is_supported(const ModelConfig& config) {
  const int32_t head_dim = config.attention.head_dim;
  if (head_dim % 8 != 0 || head_dim > kHeadDimMax)
    return error(Code::kInvalid, "'head_dim' {} is not supported", head_dim)
        .note(fmt::format("it is a multiple of 8, at most {}", kHeadDimMax));
  if (config.moe.has_value() && config.moe->num_experts > kExpertsMax)
    return error(Code::kInvalid, "{} experts are not supported", config.moe->num_experts)
        .note(fmt::format("there are at most {}", kExpertsMax));
  return ok();
}

}  // namespace primerl
