/// Model folders of Qwen3 shapes with random bf16 weights, for the benches on a CUDA device.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kernels/models/config.h"
#include "kernels/models/tensors.h"

namespace primerl::bench {

/// Normal weights with standard deviation 0.02 in bf16, norms 1.
std::vector<WeightTensor> random_tensors(const TensorTable& table);

/// Writes the folder; existing weights are kept. `name` is "0.6b", "8b", or "moe": four layers of
/// 30B-A3B. The tokenizer has a character for every token.
ModelConfig write_random_model(const std::string& name, const std::filesystem::path& folder);

}  // namespace primerl::bench
