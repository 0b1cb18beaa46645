#include "kernels/cuda/layers/gemm.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "kernels/cuda/ops/cuda_gemms.h"

namespace primerl {

Status multiply(int64_t rows, const at::Tensor& x, const CudaLinear& weight, const at::Tensor& y,
                const CudaStream& stream) {
  if (weight.fp8 != nullptr) {
    fp8_gemm(rows, x, weight.fp8->forward, y, stream);
    if (weight.bias.defined()) y.narrow(0, 0, rows).add_(weight.bias);
    return ok();
  }
  const int64_t terms = weight.transposed.size(0);
  if (x.scalar_type() == at::kBFloat16 && rows <= cuda::kFewRowsMax && terms % 8 == 0)
    return launched(
        cuda::few_rows_gemm({.rows = rows,
                             .terms = terms,
                             .columns = weight.transposed.size(1),
                             .x = x.const_data_ptr(),
                             .weight = weight.transposed.const_data_ptr(),
                             .bias = weight.bias.defined() ? weight.bias.const_data_ptr() : nullptr,
                             .y = y.mutable_data_ptr(),
                             .type = op_type(y.scalar_type())},
                            stream.raw()),
        "few_rows_gemm");
  at::Tensor to = y.narrow(0, 0, rows);
  const at::Tensor from = x.narrow(0, 0, rows);
  if (weight.bias.defined())
    at::addmm_out(to, weight.bias, from, weight.transposed);
  else if (y.scalar_type() != x.scalar_type())
    at::mm_out(to, from, weight.transposed, y.scalar_type());
  else
    at::mm_out(to, from, weight.transposed);
  return ok();
}

}  // namespace primerl
