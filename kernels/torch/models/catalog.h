/// The model families the torch room knows: one line each.
///
/// A family reads what config.json says in its own words; the decoder itself is shared.
#pragma once

#include <span>
#include <string>

#include "kernels/torch/model_config.h"

namespace primerl {

struct ModelFamily {
  std::string model_type;
  /// Fills the fields in which the family differs; the common ones are read before.
  Status (*read)(const Json& source, ModelConfig& config);
};

std::span<const ModelFamily> model_families();

/// The family of a model_type, or an error that lists what is known.
Result<ModelFamily> find_family(const std::string& model_type);

Status read_llama(const Json& source, ModelConfig& config);  // models/llama.cc
Status read_qwen3(const Json& source, ModelConfig& config);  // models/qwen3.cc

}  // namespace primerl
