/// Checks the settings of PyTorch's memory allocator, PYTORCH_CUDA_ALLOC_CONF and
/// PYTORCH_ALLOC_CONF, before libtorch reads them: libtorch ends the process at an unknown key or
/// value. Torch-free; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

/// kInvalid names the variable, the wrong part and the valid values. `text` is the variable's
/// value, "max_split_size_mb:128,expandable_segments:True".
Status check_allocator_settings(std::string_view variable, std::string_view text);
/// Checks both variables for a process that is started with `variables` ("NAME=value") added to
/// this process's environment.
Status check_allocator_settings(std::span<const std::string> variables = {});

}  // namespace primerl
