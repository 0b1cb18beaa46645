/// SwiGLU of rows on a CUDA device, of one feed-forward block or of experts. Plain functions, one
/// thread, under a CardStream::Use.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/torch/cuda/stream.h"

namespace primerl {

/// Of the first `rows` rows: gate_up [rows, 2 * width] -> activated [rows, width], of one type.
/// `added` is what adapters add to gate_up; null: nothing.
Status open_gates(int64_t rows, const at::Tensor& gate_up, const at::Tensor& activated,
                  const CardStream& stream, const cuda::AdapterAddend* added = nullptr);

/// Of the first `rows` rows: gate_up [rows, 2 * width] becomes its slope; dactivated [rows, width].
Status open_gates_backward(int64_t rows, const at::Tensor& gate_up, const at::Tensor& dactivated,
                           const CardStream& stream);

}  // namespace primerl
