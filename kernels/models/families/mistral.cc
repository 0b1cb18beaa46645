// Mistral 7B 0.2 and 0.3, Nemo, Small: llama without biases. A config without `sliding_window` has
// one of 4096 tokens, as transformers reads it.
#include "kernels/models/families/families.h"

namespace primerl {

Status read_mistral(ConfigReader& reader, ModelConfig& config) {
  int32_t window = reader.is_null("sliding_window") ? 0 : 4096;
  RETURN_IF_ERROR(reader.read_count("sliding_window", window));
  if (window > 0 && window < config.max_positions)
    return error(Code::kInvalid, "'sliding_window' is {}: sliding windows are not supported",
                 window)
        .note(fmt::format("with \"max_position_embeddings\": {} in config.json, sequences end "
                          "where the window does",
                          window));
  return need_full_attention(reader, config);
}

}  // namespace primerl
