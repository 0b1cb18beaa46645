/// The state of an optimizer on disk: `learner/optimizer.safetensors` and `learner/state.json`.
/// Arrays are those of OptimizerPlan::tensors. Independent of torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "graph/base/json.h"
#include "kernels/train/optimizer.h"
#include "kernels/weights/snapshot.h"

namespace primerl {

/// The content of `state.json`.
Json optimizer_state(std::string_view kind, int64_t num_steps);
/// Creates `folder`, writes both files and syncs them. `tensors`: the arrays of the state. Any
/// thread.
Status write_optimizer_files(const std::filesystem::path& folder,
                             const std::vector<WeightTensor>& tensors, const Json& state);

struct OptimizerState {
  int64_t num_steps = 0;
  std::vector<WeightTensor> tensors;  // in the order of the plan's; F32 or BF16
};

/// Reads what an optimizer of `kind` wrote. kInvalid: another kind wrote it. kCorrupt: a file is
/// not what it should be, or an array is missing, unknown or of another shape.
Result<OptimizerState> read_optimizer_state(const std::filesystem::path& folder,
                                            std::string_view kind, const OptimizerPlan& plan);

}  // namespace primerl
