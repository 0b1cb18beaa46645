// Qwen 2 and 2.5: q, k and v have biases, always.
#include "kernels/models/families/families.h"

namespace primerl {

Status read_qwen2(ConfigReader& reader, ModelConfig& config) {
  config.attention.has_qkv_bias = true;
  // Not read by the family: its biases are what they are.
  reader.ignore({"attention_bias"});
  return need_full_attention(reader);
}

}  // namespace primerl
