/// The state of an optimizer on disk: `learner/optimizer.safetensors` and `learner/state.json`.
/// Independent of torch. Moments are named like their weights, with the prefix "first_moment." or
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

/// Creates `folder`, writes both files and syncs them.
Status write_optimizer_state(const std::filesystem::path& folder, const TensorTable& table,
                             const OptimizerState& state);

/// Fills the moments and returns the number of finished steps; an error leaves them unchanged.
Result<int64_t> read_optimizer_state(const std::filesystem::path& folder, const TensorTable& table,
                                     float* first_moments, float* second_moments);

}  // namespace primerl
