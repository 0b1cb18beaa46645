/// What an optimizer remembers, on disk: `learner/optimizer.safetensors` and `learner/state.json`.
/// Torch-free. Moments are named like the weights they belong to, under "first_moment." and
/// "second_moment.".
#pragma once

#include <cstdint>
#include <filesystem>

#include "kernels/models/tensors.h"

namespace primerl {

struct OptimizerState {
  int64_t num_steps = 0;
  const float* first_moments = nullptr;  // [table.count()]
  const float* second_moments = nullptr;
};

/// Makes `folder`, writes both files and syncs them.
Status write_optimizer_state(const std::filesystem::path& folder, const TensorTable& table,
                             const OptimizerState& state);

/// Fills the moments and returns the number of steps done; on an error they are as they were.
Result<int64_t> read_optimizer_state(const std::filesystem::path& folder, const TensorTable& table,
                                     float* first_moments, float* second_moments);

}  // namespace primerl
