/// Shared code of the kernels: loads and stores of vectors, sums in a fixed order, launches.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ops/cuda_checks.h"

namespace primerl::cuda {

using Bf16 = __nv_bfloat16;

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffU;

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(Bf16 value) { return __bfloat162float(value); }
template <class T>
__device__ __forceinline__ T from_float(float value) {
  if constexpr (sizeof(T) == sizeof(float))
    return value;
  else
    return __float2bfloat16_rn(value);
}
/// The value after rounding to T.
template <class T>
__device__ __forceinline__ float rounded(float value) {
  return to_float(from_float<T>(value));
}

template <class T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Pack {
  T at[kCount];
};
/// Elements of 16 bytes.
template <class T>
constexpr int kVector = 16 / static_cast<int>(sizeof(T));

template <class T, int kCount>
__device__ __forceinline__ void load(const T* from, float (&to)[kCount]) {
  const auto pack = *reinterpret_cast<const Pack<T, kCount>*>(from);
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = to_float(pack.at[i]);
}
/// to += from
template <int kCount>
__device__ __forceinline__ void add(const float* from, float (&to)[kCount]) {
  const auto pack = *reinterpret_cast<const Pack<float, kCount>*>(from);
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] += pack.at[i];
}
template <class T, int kCount>
__device__ __forceinline__ void store(T* to, const float (&from)[kCount]) {
  Pack<T, kCount> pack;
#pragma unroll
  for (int i = 0; i < kCount; ++i) pack.at[i] = from_float<T>(from[i]);
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}
/// The sum over all threads of a block, returned to all; `shared` has a float for each warp. Order:
/// lanes, then warps.
__device__ __forceinline__ float block_sum(float value, float* shared) {
  value = warp_sum(value);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
  __syncthreads();
  float sum = 0;
  for (unsigned i = 0; i < (blockDim.x + kWarp - 1) / kWarp; ++i) sum += shared[i];
  return sum;
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

/// a / b of non-negative numbers; a 64-bit division takes as long as loading 16 bytes.
__device__ __forceinline__ int64_t quotient(int64_t a, int64_t b) {
  if ((a | b) >> 32 != 0) return a / b;
  return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
}

inline Outcome launched() {
  const cudaError_t error = cudaGetLastError();
  return {error == cudaSuccess ? nullptr : cudaGetErrorString(error)};
}

/// Calls start<T, kVec>() for the type of `args`: with vectors of 16 bytes if all addresses and
/// strides allow it, else one element at a time. Does nothing without rows.
template <class Args, class Start>
Outcome start_by_vectors(const Args& args, bool is_aligned, const Start& start) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const auto of_type = [&]<class T>() {
    if (is_aligned && args.width % kVector<T> == 0)
      start.template operator()<T, kVector<T>>();
    else
      start.template operator()<T, 1>();
  };
  if (args.type == Type::kFloat32)
    of_type.template operator()<float>();
  else
    of_type.template operator()<Bf16>();
  return launched();
}

/// sums[c] += the sum of parts[r, c] over the rows, in a fixed order. Launches on `stream`.
void add_parts(const float* parts, int64_t rows, int64_t width, int64_t stride, float* sums,
               Stream stream);

}  // namespace primerl::cuda
