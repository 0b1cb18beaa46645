/// GEMMs of rows with a matrix of the weights, on a CUDA device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "kernels/cuda/layers/fp8.h"

namespace primerl {

/// One matrix in the layout that GEMMs on a device read.
struct CudaLinear {
  at::Tensor transposed;                      // [terms, columns], a view; undefined: no such matrix
  at::Tensor bias;                            // [columns], or undefined
  std::shared_ptr<const Fp8Weight> fp8 = {};  // null: GEMMs read `transposed`
};

/// y = x * weight' + bias, of the first `rows` rows; y is of the type of x, or fp32. Up to
/// kFewRowsMax rows of bf16 use our own kernel. One thread, under a CudaStream::Use.
Status multiply(int64_t rows, const at::Tensor& x, const CudaLinear& weight, const at::Tensor& y,
                const CudaStream& stream);

}  // namespace primerl
