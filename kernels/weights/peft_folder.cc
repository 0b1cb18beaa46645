#include "kernels/weights/peft_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "graph/base/files.h"
#include "graph/base/json.h"
#include "kernels/weights/safetensors.h"

namespace primerl {
namespace {

constexpr size_t kAdapterConfigBytesMax = size_t{1} << 20;

/// Fields that are read below, or that do not change what a finished adapter computes.
constexpr std::array<std::string_view, 22> kTakenFields = {
    "peft_type", "base_model_name_or_path", "r", "target_modules", "lora_alpha", "use_rslora",
    "bias", "init_lora_weights", "task_type", "auto_mapping", "peft_version", "revision",
    "inference_mode", "megatron_core", "qalora_group_size", "runtime_config", "layers_pattern",
    "ensure_weight_tying", "lora_dropout",
    // peft drops it for linear layers
    "fan_in_fan_out", "unsloth_version", "unsloth_fixed"};
constexpr int64_t kDefaultRank = 8;  // peft's
constexpr double kDefaultAlpha = 8;

/// What peft writes for an option that is off.
bool is_off(const Json& value) {
  if (value.is_null()) return true;
  if (value.is_bool()) return !value.as_bool();
  if (value.is_number()) return value.as_double() == 0;
  if (value.is_object()) return value.as_object().empty();
  return value.is_array() && value.as_array().empty();
}

Status check_fields(const Json& json) {
  const Json* type = json.find("peft_type");
  if (type == nullptr || !type->is_string() || type->as_string() != "LORA")
    return error(Code::kInvalid, "'peft_type' is {}, only \"LORA\" is known",
                 type == nullptr ? "missing" : type->dump());
  for (const auto& [key, value] : json.as_object()) {
    const bool is_taken =
        std::find(kTakenFields.begin(), kTakenFields.end(), key) != kTakenFields.end();
    if (is_taken || is_off(value) || key.starts_with('_')) continue;
    return error(Code::kInvalid, "'{}' is {}, which is not supported here", key, value.dump())
        .note("make the adapter without it");
  }
  const Json* bias = json.find("bias");
  if (bias != nullptr && !bias->is_null() && *bias != Json("none"))
    return error(Code::kInvalid, "'bias' is {}: biases of adapters are not supported", bias->dump())
        .note("known values: \"none\"");
  // The other values change the weights of the base (pissa, olora, loftq ...).
  const Json* init = json.find("init_lora_weights");
  if (init != nullptr && !init->is_null() && !init->is_bool() && *init != Json("gaussian"))
    return error(Code::kInvalid, "'init_lora_weights' is {}: it may change the base", init->dump())
        .note("known values: true, false, \"gaussian\"");
  return ok();
}

Result<std::vector<std::string>> targets_of(const Json& json) {
  const Json* targets = json.find("target_modules");
  if (targets != nullptr && *targets == Json(kAllLinear))
    return std::vector{std::string(kAllLinear)};
  std::vector<std::string> names;
  if (targets != nullptr && targets->is_array()) {
    for (const auto& target : targets->as_array())
      if (target.is_string()) names.push_back(target.as_string());
    if (names.size() == targets->as_array().size()) return names;
  }
  return error(Code::kInvalid, "'target_modules' is {}, it must be a list of names or \"{}\"",
               targets == nullptr ? "missing" : targets->dump(), kAllLinear);
}

Result<AdapterConfig> config_of(const Json& json) {
  if (!json.is_object()) return error(Code::kInvalid, "it is not a JSON object");
  RETURN_IF_ERROR(check_fields(json));
  // For peft, null and absent are the default.
  const auto is_given = [&json](const char* key) {
    const Json* value = json.find(key);
    return value != nullptr && !value->is_null();
  };
  int64_t rank = kDefaultRank;
  AdapterConfig config;
  config.alpha = kDefaultAlpha;
  if (is_given("r")) {
    ASSIGN_OR_RETURN(rank, json.get_int("r"));
  }
  if (is_given("lora_alpha")) {
    ASSIGN_OR_RETURN(config.alpha, json.get_double("lora_alpha"));
  }
  if (is_given("use_rslora")) {
    ASSIGN_OR_RETURN(config.is_rank_stabilized, json.get_bool("use_rslora"));
  }
  if (is_given("lora_dropout")) {
    ASSIGN_OR_RETURN(config.dropout, json.get_double("lora_dropout"));
  }
  config.rank = static_cast<int32_t>(std::clamp<int64_t>(rank, 0, kAdapterRankMax + 1));
  ASSIGN_OR_RETURN(config.targets, targets_of(json));
  RETURN_IF_ERROR(validate(config));
  const Json* ties = json.find("ensure_weight_tying");
  if (targets_head(config.targets) && ties != nullptr && *ties == Json(true))
    return error(Code::kInvalid,
                 "'ensure_weight_tying' is true, so the adapter of '{}' is one of "
                 "the embedding too, which is not supported here",
                 kHeadTarget)
        .note("make the adapter without it");
  return config;
}

}  // namespace

Result<PeftFolder> read_peft_config(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kAdapterConfigFile;
  const auto text = read_text_file(file, kAdapterConfigBytesMax);
  if (!text.ok()) {
    const auto weights = file.parent_path() / "weights";
    std::error_code fault;
    if (!std::filesystem::exists(weights / kAdapterConfigFile, fault)) return Error(text.error());
    return Error(text.error())
        .note(fmt::format("the adapter of this checkpoint is in '{}'", weights.string()));
  }
  ASSIGN_OR_RETURN(const auto json, parse_json(*text, file.string()));
  auto config = config_of(json);
  if (!config.ok()) return Error(config.error()).while_doing(file.string());
  const Json* base = json.find("base_model_name_or_path");
  return PeftFolder{
      std::move(config).value(), base != nullptr && base->is_string() ? base->as_string() : "", {}};
}

Result<std::vector<WeightTensor>> read_peft_tensors(const std::filesystem::path& folder,
                                                    const AdapterConfig& config) {
  const std::filesystem::path file = folder / kAdapterWeightsFile;
  ASSIGN_OR_RETURN(auto tensors, read_safetensors(file));
  if (is_adapter(tensors))
    return error(Code::kInvalid, "{}: tensor '{}' is not part of an adapter's file", file.string(),
                 kAdapterScaling);
  if (targets_head(config.targets))
    std::erase_if(tensors, [](const auto& tensor) { return tensor.name == kPeftHeadCopy; });
  const auto scaling = static_cast<float>(scaling_of(config));
  std::vector<std::byte> bytes(sizeof(scaling));
  std::memcpy(bytes.data(), &scaling, sizeof(scaling));
  tensors.push_back({std::string(kAdapterScaling), DataType::kF32, {1}, Blob(std::move(bytes))});
  std::ranges::sort(tensors, {}, &WeightTensor::name);
  return tensors;
}

Result<std::vector<WeightTensor>> read_adapter_tensors(const std::filesystem::path& folder) {
  ASSIGN_OR_RETURN(const PeftFolder said, read_peft_config(folder));
  return read_peft_tensors(folder, said.config);
}

Status check_same_adapter(const AdapterConfig& wanted, const AdapterConfig& found) {
  if (found.rank != wanted.rank)
    return error(Code::kInvalid, "the adapter there has rank {}, this one {}", found.rank,
                 wanted.rank);
  if (scaling_of(found) != scaling_of(wanted))
    return error(Code::kInvalid, "the adapter there is scaled by {} (alpha {}), this one by {}",
                 scaling_of(found), found.alpha, scaling_of(wanted));
  if (named_targets(found) != named_targets(wanted))
    return error(Code::kInvalid, "the adapter there targets {}, this one {}",
                 fmt::join(found.targets, ", "), fmt::join(wanted.targets, ", "));
  return ok();
}

Status write_adapter_folder(const std::filesystem::path& folder, const AdapterConfig& config,
                            const std::string& base, std::vector<WeightTensor> tensors) {
  RETURN_IF_ERROR(validate(config));
  std::error_code fault;
  std::filesystem::create_directories(folder, fault);
  if (fault) return error(Code::kIo, "cannot make '{}': {}", folder.string(), fault.message());
  Json json = Json::object();
  json.set("peft_type", "LORA").set("task_type", "CAUSAL_LM");
  json.set("base_model_name_or_path", base).set("inference_mode", true);
  json.set("r", config.rank).set("lora_alpha", config.alpha).set("lora_dropout", config.dropout);
  json.set("use_rslora", config.is_rank_stabilized).set("bias", "none");
  // For peft, "all-linear" may include routers, if they are linear layers; exact names do not.
  json.set("target_modules", Json::list(named_targets(config)));
  const std::string text = json.dump(2) + "\n";
  const std::array<std::span<const std::byte>, 1> parts = {std::as_bytes(std::span(text))};
  RETURN_IF_ERROR(write_file_synced(folder / kAdapterConfigFile, parts));
  std::erase_if(tensors, [](const auto& tensor) { return tensor.name == kAdapterScaling; });
  RETURN_IF_ERROR(write_safetensors(folder / kAdapterWeightsFile, tensors));
  return system_files().sync(folder);
}

}  // namespace primerl
