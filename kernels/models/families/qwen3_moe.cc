// Qwen 3 mixtures: attention as qwen3; softmax over all experts, then the top k.
#include <algorithm>

#include "kernels/models/families/families.h"

namespace primerl {
namespace {

Status read_dense_layers(ConfigReader& reader, int32_t num_layers, std::vector<int32_t>& layers) {
  const Json* list = reader.find("mlp_only_layers");
  if (list == nullptr) return ok();
  if (!list->is_array())
    return error(Code::kInvalid, "'mlp_only_layers' is {}, not an array", list->kind());
  for (const auto& layer : list->as_array()) {
    if (!layer.is_integer() || layer.as_int() < 0 || layer.as_int() >= num_layers)
      return error(Code::kInvalid, "'mlp_only_layers' holds {}", layer.dump())
          .note(fmt::format("layers are counted from 0 to {}", num_layers - 1));
    layers.push_back(static_cast<int32_t>(layer.as_int()));
  }
  return ok();
}

}  // namespace

Status read_qwen3_moe(ConfigReader& reader, ModelConfig& config) {
  RETURN_IF_ERROR(read_qwen3(reader, config));
  MoeSpec moe;
  moe.is_normalized = false;
  // transformers 5 writes the second name.
  RETURN_IF_ERROR(reader.read_count("num_experts", moe.num_experts));
  RETURN_IF_ERROR(reader.read_count("num_local_experts", moe.num_experts));
  if (moe.num_experts == 0) RETURN_IF_ERROR(reader.need_count("num_experts", moe.num_experts));
  RETURN_IF_ERROR(reader.need_count("num_experts_per_tok", moe.experts_per_token));
  RETURN_IF_ERROR(reader.need_count("moe_intermediate_size", moe.width));
  RETURN_IF_ERROR(reader.read_flag("norm_topk_prob", moe.is_normalized));
  int32_t sparse_step = 1;
  std::vector<int32_t> dense;
  RETURN_IF_ERROR(reader.read_count("decoder_sparse_step", sparse_step));
  RETURN_IF_ERROR(read_dense_layers(reader, config.num_layers(), dense));
  // Used only by the balance loss of pretraining.
  reader.ignore({"router_aux_loss_coef", "output_router_logits"});
  RETURN_IF_ERROR(check_moe(moe));
  for (int32_t i = 0; i < config.num_layers(); ++i) {
    const bool is_dense = std::find(dense.begin(), dense.end(), i) != dense.end();
    if (!is_dense && (i + 1) % sparse_step == 0)
      config.layers[static_cast<size_t>(i)].stages.emplace_back(moe);
  }
  config.moe = moe;
  return ok();
}

}  // namespace primerl
