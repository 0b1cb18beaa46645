/// The state of an optimizer on disk: `learner/optimizer.safetensors` and `learner/state.json`.
/// Arrays are those of OptimizerPlan::tensors. Independent of torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "kernels/train/optimizer.h"
#include "kernels/weights/snapshot.h"

namespace primerl {

/// Creates `folder`, writes both files and syncs them. `tensors`: the arrays of the state.
Status write_optimizer_state(const std::filesystem::path& folder, std::string_view kind,
                             int64_t num_steps, const std::vector<WeightTensor>& tensors);

struct OptimizerState {
  int64_t num_steps = 0;
  std::vector<WeightTensor> tensors;  // in the order of the plan's; F32 or BF16
};

/// Reads what an optimizer of `kind` wrote. kInvalid: another kind wrote it. kCorrupt: a file is
/// not what it should be, or an array is missing, unknown or of another shape.
Result<OptimizerState> read_optimizer_state(const std::filesystem::path& folder,
                                            std::string_view kind, const OptimizerPlan& plan);

}  // namespace primerl
