#include "kernels/models/families/families.h"

#include <array>
#include <vector>

#include "graph/base/suggest.h"

namespace primerl {

std::span<const ModelFamily> model_families() {
  static const std::array<ModelFamily, 6> families = {{
      {"glm4_moe", 0, 1e-5, false, read_glm4_moe},
      {"llama", 0, 1e-6, true, read_llama},
      {"mistral", 0, 1e-6, false, read_mistral},
      {"qwen2", 0, 1e-6, false, read_qwen2},
      {"qwen3", 128, 1e-6, false, read_qwen3},
      {"qwen3_moe", 0, 1e-6, false, read_qwen3_moe},
  }};
  return families;
}

Result<ModelFamily> find_family(const std::string& model_type) {
  std::vector<std::string> known;
  for (const auto& family : model_families()) {
    if (family.model_type == model_type) return family;
    known.push_back(family.model_type);
  }
  return error(Code::kInvalid, "model_type '{}' is not supported", model_type)
      .note(fmt::format("known model types: {}", join_names(known)));
}

Status need_full_attention(ConfigReader& reader, const ModelConfig& config) {
  // Without the key transformers has a window of 4096 tokens.
  int32_t window = reader.is_null("sliding_window") ? 0 : 4096, first_layer = 0;
  bool uses_window = false;
  RETURN_IF_ERROR(reader.read_count("sliding_window", window, -1));
  RETURN_IF_ERROR(reader.read_count("max_window_layers", first_layer, 0));
  RETURN_IF_ERROR(reader.read_flag("use_sliding_window", uses_window));
  const bool can_matter = window > 0 && window < config.max_positions;
  const Json* types = reader.find("layer_types");
  if (types == nullptr) {
    if (!uses_window || !can_matter || first_layer >= config.num_layers()) return ok();
    return error(Code::kInvalid, "'use_sliding_window' is true: sliding windows are not supported")
        .note("every layer here attends to the whole context");
  }
  if (!types->is_array())
    return error(Code::kInvalid, "'layer_types' is {}, not an array", types->kind());
  for (const auto& type : types->as_array()) {
    if (type == Json("full_attention")) continue;
    if (type == Json("sliding_attention") && !can_matter) continue;
    return error(Code::kInvalid, "'layer_types' has {}; only \"full_attention\" is supported",
                 type.dump());
  }
  return ok();
}

Status check_moe(const MoeSpec& moe) {
  if (moe.experts_per_token > moe.num_experts)
    return error(Code::kInvalid, "a token goes to {} of {} experts", moe.experts_per_token,
                 moe.num_experts);
  if (moe.num_experts % moe.num_groups != 0)
    return error(Code::kInvalid, "{} experts are not a multiple of 'n_group' {}", moe.num_experts,
                 moe.num_groups);
  if (moe.groups_kept > moe.num_groups)
    return error(Code::kInvalid, "'topk_group' {} is above 'n_group' {}", moe.groups_kept,
                 moe.num_groups);
  if (moe.experts_per_token > moe.num_experts / moe.num_groups * moe.groups_kept)
    return error(Code::kInvalid, "a token goes to {} experts, but {} groups of {} have fewer",
                 moe.experts_per_token, moe.groups_kept, moe.num_experts / moe.num_groups);
  return ok();
}

}  // namespace primerl
