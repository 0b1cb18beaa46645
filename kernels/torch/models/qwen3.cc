#include "kernels/torch/models/catalog.h"

namespace primerl {

Status read_qwen3(const Json& source, ModelConfig& config) {
  config.qk_norm = true;
  if (const Json* sliding = source.find("use_sliding_window");
      sliding != nullptr && sliding->is_bool() && sliding->as_bool())
    return error(Code::kInvalid, "'use_sliding_window' is true; only full attention is supported");
  // The family's default, not hidden_size / num_attention_heads.
  if (source.find("head_dim") == nullptr) config.head_dim = 128;
  return ok();
}

}  // namespace primerl
