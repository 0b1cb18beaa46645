// FP8 with block scales by ATen.
#include <ATen/ops/full.h>

#include "kernels/cuda/aten/on_stream.h"

namespace primerl::cuda {
namespace {

constexpr double kLargestCode = 448;
constexpr double kLeastMagnitude = 1e-12;

/// Division by a tensor: for division by a host scalar, a device multiplies by the reciprocal,
/// whose last bits differ.
at::Tensor scales_of(const at::Tensor& magnitudes) {
  const at::Tensor largest = at::full({1}, kLargestCode, magnitudes.options());
  return magnitudes.clamp_min(kLeastMagnitude).div_(largest);
}

/// A value that the division rounds to a little more than 448 would become NaN.
at::Tensor codes_of(const at::Tensor& x, const at::Tensor& scales) {
  return (x / scales).clamp_(-kLargestCode, kLargestCode).to(at::kFloat8_e4m3fn);
}

}  // namespace

Outcome quantise_rows(const QuantiseRowsArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const int64_t blocks = args.width / kFp8Block, all_blocks = args.code_stride / kFp8Block;
  const int64_t num_sources = args.sources == nullptr ? args.rows : kAnyRows;
  const at::Tensor all = on.of(args.type, args.x, {num_sources, blocks, kFp8Block});
  const at::Tensor x =
      args.sources == nullptr ? all : all.index_select(0, on.ints(args.sources, {args.rows}));
  const at::Tensor codes = on.bytes(args.codes, args.rows * args.code_stride)
                               .view(at::kFloat8_e4m3fn)
                               .view({args.rows, all_blocks, kFp8Block});
  const at::Tensor scales =
      on.of(Type::kFloat32, args.scales, {all_blocks, args.rows}, {args.scale_stride, 1});
  for_parts(args.rows, args.width, [&](int64_t first, int64_t count) {
    const at::Tensor rows = wide(x.narrow(0, first, count));
    const at::Tensor some = scales_of(rows.abs().amax(-1));
    codes.narrow(0, first, count).narrow(1, 0, blocks).copy_(codes_of(rows, some.unsqueeze(-1)));
    scales.narrow(0, 0, blocks).narrow(1, first, count).copy_(some.t());
  });
  if (all_blocks > blocks) {
    codes.narrow(1, blocks, all_blocks - blocks).view(at::kByte).zero_();
    scales.narrow(0, blocks, all_blocks - blocks).fill_(kLeastMagnitude / kLargestCode);
  }
  return {};
}

Outcome quantise_blocks(const QuantiseBlocksArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  const int64_t tall = args.rows / kFp8Block, across = args.width / kFp8Block;
  const at::Tensor x = wide(on.of(args.type, args.x, {tall, kFp8Block, across, kFp8Block}));
  const int64_t rows_and_columns[] = {1, 3};
  const at::Tensor scales = scales_of(x.abs().amax(rows_and_columns));
  const at::Tensor codes =
      codes_of(x, scales.unsqueeze(1).unsqueeze(-1)).view({args.rows, args.width});
  const auto write = [&](void* to_codes, int64_t code_stride, const float* to_scales,
                         int64_t scale_stride, const at::Tensor& some, const at::Tensor& by) {
    const int64_t rows = some.size(0), width = some.size(1);
    on.bytes(to_codes, rows * code_stride)
        .view({rows, code_stride})
        .narrow(1, 0, width)
        .copy_(some);
    on.of(Type::kFloat32, to_scales, {rows / kFp8Block, width / kFp8Block}, {scale_stride, 1})
        .copy_(by);
  };
  const at::Tensor bytes = codes.view(at::kByte);
  write(args.codes, args.code_stride, args.scales, args.scale_stride, bytes, scales);
  if (args.transposed_codes != nullptr)
    write(args.transposed_codes, args.transposed_code_stride, args.transposed_scales,
          args.transposed_scale_stride, bytes.t(), scales.t());
  return {};
}

/// Mixtures read rounded numbers instead (kernels/cuda/layers/fp8.h).
Outcome grouped_fp8_gemm(const GroupedFp8Args& args, Stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  return {"grouped FP8 GEMMs need a build with nvcc"};
}

}  // namespace primerl::cuda
