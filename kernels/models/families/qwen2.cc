// Qwen 2 and 2.5: q, k and v always have biases.
#include "kernels/models/families/families.h"

namespace primerl {

Status read_qwen2(ConfigReader& reader, ModelConfig& config) {
  config.attention.has_qkv_bias = true;
  // The family does not read them: its biases are fixed.
  reader.ignore({"attention_bias", "qkv_bias"});
  return need_full_attention(reader, config);
}

}  // namespace primerl
