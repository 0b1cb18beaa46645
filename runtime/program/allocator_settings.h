/// The settings of PyTorch's memory allocator, PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF,
/// checked before libtorch reads them: it ends a process at a key or a value that it does not know.
/// Torch-free; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

/// kInvalid names the variable, the part that is wrong and what is valid there. `text` is the
/// variable's value, "max_split_size_mb:128,expandable_segments:True".
Status check_allocator_settings(std::string_view variable, std::string_view text);
/// Of both variables in this process's environment, where `variables` ("NAME=value") come first:
/// what a process that is started with them has.
Status check_allocator_settings(std::span<const std::string> variables = {});

}  // namespace primerl
