/// Code shared by the samplers, which use a block, several blocks or a cluster of blocks per row:
/// the CPU's weights, masses and uniform random numbers, and the sums of split rows.
#pragma once

#include "kernels/cuda/ops/device.cuh"

namespace primerl::cuda {

using Mass = unsigned long long;

constexpr float kMassUnit = 0x1p40F;

/// e^x with the bits of kernels/ops/lanes.h on a CPU with fused multiply-add.
__device__ __forceinline__ float exp_of(float x) {
  if (x < -87.0F) return 0;
  x = x > 88.0F ? 88.0F : x;
  const float scaled = __fmul_rn(x, 1.44269504088896341F);
  const int whole = __float2int_rz(__fadd_rn(scaled, scaled < 0 ? -0.5F : 0.5F));
  const float n = __int2float_rn(whole);
  const float r = __fmaf_rn(-n, -2.12194440e-4F, __fmaf_rn(-n, 0.693359375F, x));
  float p = __fmaf_rn(1.9875691500e-4F, r, 1.3981999507e-3F);
  p = __fmaf_rn(p, r, 8.3334519073e-3F);
  p = __fmaf_rn(p, r, 4.1665795894e-2F);
  p = __fmaf_rn(p, r, 1.6666665459e-1F);
  p = __fmaf_rn(p, r, 5.0000001201e-1F);
  p = __fadd_rn(__fmaf_rn(p, __fmul_rn(r, r), r), 1.0F);
  return __fmul_rn(p, __int_as_float((whole + 127) << 23));
}

__device__ __forceinline__ Mass mass_of(float weight) {
  return static_cast<Mass>(__float2ll_rz(__fmul_rn(weight, kMassUnit)));
}

/// sampling_uniform() of graph/base/random.h: Philox 4x32-10, 53 bits.
__device__ __forceinline__ double uniform_of(uint64_t seed, uint64_t index) {
  uint32_t c[4] = {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0};
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = 0xD2511F53ULL * c[0], b = 0xCD9E8D57ULL * c[2];
    const uint32_t second = c[1], fourth = c[3];
    c[0] = static_cast<uint32_t>(b >> 32) ^ second ^ key[0];
    c[1] = static_cast<uint32_t>(b);
    c[2] = static_cast<uint32_t>(a >> 32) ^ fourth ^ key[1];
    c[3] = static_cast<uint32_t>(a);
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  const uint64_t bits = static_cast<uint64_t>(c[0]) | static_cast<uint64_t>(c[1]) << 32;
  return static_cast<double>(bits >> 11) * (1.0 / 9007199254740992.0);
}

/// Whether settings exclude tokens, so that a threshold must be found.
__device__ __forceinline__ bool is_cut(const SamplingRow& settings) {
  return settings.inverse_temperature != 0 &&
         (settings.top_k > 0 || settings.top_p < 1 || settings.min_p > 0);
}

// Rows that keep all tokens are split over several blocks, which write sums for sampling into the
// workspace. A row is divided into ranges of ids, one for each warp.
constexpr int kRanges = 128;
constexpr int kLargestParts = 16;

struct RangeSums {
  Mass mass;
  float sum;
  int best;  // greedy sampling: the first id with the greatest logit of the row; else INT_MAX
};
struct RowSums {
  RangeSums ranges[kRanges];
  float largest[kLargestParts];  // partial maxima; the greatest counts
};

__device__ __forceinline__ RowSums& sums_of(const SampleArgs& args, int64_t row) {
  return static_cast<RowSums*>(args.workspace)[row];
}
__device__ __forceinline__ float largest_of(const RowSums& sums) {
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kLargestParts; ++i) largest = fmaxf(largest, sums.largest[i]);
  return largest;
}
/// Ids of a range, a multiple of kWarp.
__host__ __device__ constexpr int range_size(int size) {
  return (size + kRanges * kWarp - 1) / (kRanges * kWarp) * kWarp;
}

template <class V>
__device__ __forceinline__ V warp_total(V value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2)
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

/// Writes the sums of all rows that keep all tokens. Launches on `stream`. False: nothing was
/// launched, because the device has no clusters of blocks or a row does not fit into one.
bool sum_in_clusters(const SampleArgs& args, Stream stream);
/// The same on any device.
void sum_in_parts(const SampleArgs& args, Stream stream);

}  // namespace primerl::cuda
