/// GEMMs of rows with a matrix of the weights, on a CUDA device.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/cuda/memory/weights.h"

namespace primerl {

/// y = x * weight' + bias, of the first `rows` rows; y is of the type of x, or fp32. Up to
/// kFewRowsMax rows of bf16 use our own kernel. One thread, under a CudaStream::Use.
Status multiply(int64_t rows, const at::Tensor& x, const CudaLinear& weight, const at::Tensor& y,
                const CudaStream& stream);

}  // namespace primerl
