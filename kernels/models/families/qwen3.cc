// Qwen 3, dense: per-head norms of q and k.
#include "kernels/models/families/families.h"

namespace primerl {

Status read_qwen3(ConfigReader& reader, ModelConfig& config) {
  bool has_bias = false;
  RETURN_IF_ERROR(reader.read_flag("attention_bias", has_bias));
  config.attention.has_qkv_bias = has_bias;
  config.attention.has_out_bias = has_bias;
  config.attention.has_qk_norm = true;
  return need_full_attention(reader, config);
}

}  // namespace primerl
