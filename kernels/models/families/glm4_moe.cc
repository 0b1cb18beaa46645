// GLM 4.5 to 4.7 mixtures: sigmoid scores, a bias that is used only to choose experts, shared
// experts, partial RoPE. The layers for multi-token prediction after the last one are not run.
#include "kernels/models/families/families.h"

namespace primerl {

Status read_glm4_moe(ConfigReader& reader, ModelConfig& config) {
  RETURN_IF_ERROR(reader.read_flag("attention_bias", config.attention.has_qkv_bias));
  RETURN_IF_ERROR(reader.read_flag("use_qk_norm", config.attention.has_qk_norm));
  // The rope parameters have precedence over the config.
  double partial = 0.5;
  RETURN_IF_ERROR(reader.read_positive("partial_rotary_factor", partial));
  if (config.rope.partial_factor == 0) config.rope.partial_factor = partial;
  MoeSpec moe;
  moe.score = ExpertScore::kSigmoid;
  moe.has_selection_bias = true;
  moe.epsilon = 1e-20;
  RETURN_IF_ERROR(reader.need_count("n_routed_experts", moe.num_experts));
  RETURN_IF_ERROR(reader.need_count("num_experts_per_tok", moe.experts_per_token));
  RETURN_IF_ERROR(reader.need_count("moe_intermediate_size", moe.width));
  RETURN_IF_ERROR(reader.read_count("n_group", moe.num_groups));
  RETURN_IF_ERROR(reader.read_count("topk_group", moe.groups_kept));
  RETURN_IF_ERROR(reader.read_flag("norm_topk_prob", moe.is_normalized));
  RETURN_IF_ERROR(reader.read_positive("routed_scaling_factor", moe.scale));
  int32_t num_shared = 1, num_dense = 1;
  RETURN_IF_ERROR(reader.read_count("n_shared_experts", num_shared, 0));
  RETURN_IF_ERROR(reader.read_count("first_k_dense_replace", num_dense, 0));
  moe.shared_width = num_shared * moe.width;
  RETURN_IF_ERROR(reader.read_count("num_mtp_layers", config.num_unused_layers, 0));
  RETURN_IF_ERROR(reader.read_count("num_nextn_predict_layers", config.num_unused_layers, 0));
  reader.ignore({"router_aux_loss_coef", "output_router_logits"});
  RETURN_IF_ERROR(check_moe(moe));
  for (int32_t i = num_dense; i < config.num_layers(); ++i)
    config.layers[static_cast<size_t>(i)].stages.emplace_back(moe);
  config.moe = moe;
  return ok();
}

}  // namespace primerl
