/// The LoRA delta of the rows of a decode step, for the ATen operations that read them.
#pragma once

#include "kernels/cuda/aten/on_stream.h"

namespace primerl::cuda {

/// The LoRA delta of all rows and columns of the GEMM: fp32 [num_rows, columns], zeros where
/// nothing is added.
at::Tensor added_of(const OnStream& on, const LoraDelta& lora_delta);

}  // namespace primerl::cuda
