/// SwiGLU of rows on a CUDA device, of one feed-forward block or of experts. Plain functions, one
/// thread, under a CudaStream::Use.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/cuda/device/stream.h"

namespace primerl {

/// For the first `rows` rows: gate_up [rows, 2 * width] -> activated [rows, width], of one type.
/// `lora_delta` is added to gate_up; null: none.
Status apply_swiglu(int64_t rows, const at::Tensor& gate_up, const at::Tensor& activated,
                    const CudaStream& stream, const cuda::LoraDelta* lora_delta = nullptr);

/// For the first `rows` rows: gate_up [rows, 2 * width] becomes its gradient; dactivated [rows,
/// width].
Status apply_swiglu_backward(int64_t rows, const at::Tensor& gate_up, const at::Tensor& dactivated,
                             const CudaStream& stream);

}  // namespace primerl
