/// Model folders of Qwen3 shapes with random bf16 weights, for the benches on a device.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kernels/models/config.h"
#include "kernels/models/tensors.h"

namespace primerl::bench {

/// Writes the folder, but for weights that are there. `name` is "0.6b" or "8b". Weights are normal
/// with deviation 0.02, norms 1; the tokenizer has a character for every token.
ModelConfig write_random_model(const std::string& name, const std::filesystem::path& folder);

/// Numbers for every tensor of a table, as those of a folder.
std::vector<WeightTensor> random_tensors(const TensorTable& table);

}  // namespace primerl::bench
