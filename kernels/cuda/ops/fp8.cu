// FP8 with block scales. Rows: one warp per 128 numbers, four per lane. Matrices: one block of
// threads per 128 x 128 numbers; the codes go through shared memory, to be written transposed too.
#include <cuda_fp8.h>

#include "kernels/cuda/ops/device.cuh"

namespace primerl::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kSide = static_cast<int>(kFp8Block);
constexpr int kOfLane = kSide / kWarp;
constexpr int kBlocksOfWarp = 4;  // of rows
constexpr float kLargest = 448;
constexpr float kFloor = 1e-12F;

__device__ __forceinline__ float warp_largest(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2)
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

__device__ __forceinline__ float largest_of(const float (&x)[kOfLane]) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) largest = fmaxf(largest, fabsf(x[i]));
  return largest;
}

__device__ __forceinline__ float scale_of(float largest) {
  return __fdiv_rn(fmaxf(largest, kFloor), kLargest);
}

/// Four codes, the first in the lowest byte.
__device__ __forceinline__ uint32_t codes_of(const float (&x)[kOfLane], float scale) {
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const auto code = __nv_cvt_float_to_fp8(__fdiv_rn(x[i], scale), __NV_SATFINITE, __NV_E4M3);
    codes |= static_cast<uint32_t>(code) << (8 * i);
  }
  return codes;
}

/// A warp loads all its blocks before it uses the first.
template <class T>
__global__ void __launch_bounds__(kThreads) quantise_rows_kernel(QuantiseRowsArgs args) {
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const int64_t blocks = args.code_stride / kSide;
  const int lane = threadIdx.x % kWarp;
  float x[kBlocksOfWarp][kOfLane] = {};
#pragma unroll
  for (int i = 0; i < kBlocksOfWarp; ++i) {
    const int64_t at = warp * kBlocksOfWarp + i, row = quotient(at, blocks);
    const int64_t column = (at - row * blocks) * kSide;
    if (row >= args.rows || column >= args.width) continue;
    const int64_t source = args.sources == nullptr ? row : args.sources[row];
    load(static_cast<const T*>(args.x) + source * args.width + column + lane * kOfLane, x[i]);
  }
#pragma unroll
  for (int i = 0; i < kBlocksOfWarp; ++i) {
    const int64_t at = warp * kBlocksOfWarp + i, row = quotient(at, blocks);
    if (row >= args.rows) return;
    const int64_t block = at - row * blocks;
    const float scale = scale_of(warp_largest(largest_of(x[i])));
    auto* to = static_cast<uint8_t*>(args.codes) + row * args.code_stride + block * kSide;
    reinterpret_cast<uint32_t*>(to)[lane] = codes_of(x[i], scale);
    if (lane == 0) args.scales[block * args.scale_stride + row] = scale;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) quantise_blocks_kernel(QuantiseBlocksArgs args) {
  constexpr int kRowsOfWarp = kSide / kWarps;
  constexpr int kPitch = kSide + kOfLane;  // bytes of a row, padded so that columns use different
                                           // banks
  __shared__ uint8_t tile[kSide * kPitch];
  __shared__ float largest_of_warp[kWarps];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kSide;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kSide;
  const T* from = static_cast<const T*>(args.x) + first_row * args.width + first_column;
  float x[kRowsOfWarp][kOfLane];
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i) {
    load(from + (i * kWarps + warp) * args.width + lane * kOfLane, x[i]);
    largest = fmaxf(largest, largest_of(x[i]));
  }
  largest = warp_largest(largest);
  if (lane == 0) largest_of_warp[warp] = largest;
  __syncthreads();
  for (int i = 0; i < kWarps; ++i) largest = fmaxf(largest, largest_of_warp[i]);
  const float scale = scale_of(largest);
  auto* to = static_cast<uint8_t*>(args.codes) + first_row * args.code_stride + first_column;
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i) {
    const int row = i * kWarps + warp;
    const uint32_t codes = codes_of(x[i], scale);
    reinterpret_cast<uint32_t*>(to + row * args.code_stride)[lane] = codes;
    reinterpret_cast<uint32_t*>(tile + row * kPitch)[lane] = codes;
  }
  if (threadIdx.x == 0) args.scales[blockIdx.y * args.scale_stride + blockIdx.x] = scale;
  if (args.transposed_codes == nullptr) return;
  __syncthreads();
  auto* transposed = static_cast<uint8_t*>(args.transposed_codes) +
                     first_column * args.transposed_code_stride + first_row;
  for (int i = 0; i < kRowsOfWarp; ++i) {
    const int column = i * kWarps + warp;
    uint32_t codes = 0;
#pragma unroll
    for (int j = 0; j < kOfLane; ++j)
      codes |= static_cast<uint32_t>(tile[(lane * kOfLane + j) * kPitch + column]) << (8 * j);
    reinterpret_cast<uint32_t*>(transposed + column * args.transposed_code_stride)[lane] = codes;
  }
  if (threadIdx.x == 0)
    args.transposed_scales[blockIdx.x * args.transposed_scale_stride + blockIdx.y] = scale;
}

}  // namespace

Outcome quantise_rows(const QuantiseRowsArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const int64_t all = args.rows * (args.code_stride / kSide);
  const auto blocks = static_cast<unsigned>(divide_up(all, kWarps * kBlocksOfWarp));
  if (args.type == Type::kFloat32)
    quantise_rows_kernel<float><<<blocks, kThreads, 0, stream>>>(args);
  else
    quantise_rows_kernel<Bf16><<<blocks, kThreads, 0, stream>>>(args);
  return launched();
}

Outcome quantise_blocks(const QuantiseBlocksArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const dim3 blocks(static_cast<unsigned>(args.width / kSide),
                    static_cast<unsigned>(args.rows / kSide));
  if (args.type == Type::kFloat32)
    quantise_blocks_kernel<float><<<blocks, kThreads, 0, stream>>>(args);
  else
    quantise_blocks_kernel<Bf16><<<blocks, kThreads, 0, stream>>>(args);
  return launched();
}

}  // namespace primerl::cuda
