#include "kernels/torch/models/catalog.h"

namespace primerl {

Status read_llama(const Json& source, ModelConfig& config) {
  config.qk_norm = false;
  if (const Json* bias = source.find("mlp_bias"); bias != nullptr && bias->is_bool())
    config.mlp_bias = bias->as_bool();
  return ok();
}

}  // namespace primerl
