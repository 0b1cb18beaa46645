// Llama 2 and 3, and the many models of their form (model_type "llama").
#include "kernels/models/families/families.h"

namespace primerl {

Status read_llama(ConfigReader& reader, ModelConfig& config) {
  bool has_bias = false;
  RETURN_IF_ERROR(reader.read_flag("attention_bias", has_bias));
  config.attention.has_qkv_bias = has_bias;
  config.attention.has_out_bias = has_bias;
  RETURN_IF_ERROR(reader.read_flag("mlp_bias", config.mlp.has_bias));
  RETURN_IF_ERROR(reader.must_be_off("use_qk_norm"));
  RETURN_IF_ERROR(reader.must_be_off("qk_layernorm"));
  return need_full_attention(reader, config);
}

}  // namespace primerl
