#include "kernels/models/families/families.h"

#include <array>
#include <vector>

#include "graph/base/suggest.h"

namespace primerl {

std::span<const ModelFamily> model_families() {
  static const std::array<ModelFamily, 5> families = {{
      {"glm4_moe", 0, 1e-5, false, read_glm4_moe},
      {"llama", 0, 1e-6, true, read_llama},
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

Status need_full_attention(ConfigReader& reader) {
  RETURN_IF_ERROR(reader.must_be("use_sliding_window", false));
  // Without 'use_sliding_window' they have no effect.
  reader.ignore({"sliding_window", "max_window_layers"});
  const Json* types = reader.find("layer_types");
  if (types == nullptr) return ok();
  if (!types->is_array())
    return error(Code::kInvalid, "'layer_types' is {}, not an array", types->kind());
  for (const auto& type : types->as_array())
    if (!type.is_string() || type.as_string() != "full_attention")
      return error(Code::kInvalid, "'layer_types' holds {}; only \"full_attention\" is supported",
                   type.dump());
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
