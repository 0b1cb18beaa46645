/// What both samplers, a block a row and parts of a row, share: the CPU's weights, masses and
/// draws.
#pragma once

#include "kernels/ops/cuda/device.cuh"

namespace primerl::cuda {

using Mass = unsigned long long;

constexpr float kMassUnit = 0x1p40F;

/// e^x as kernels/ops/lanes.h has it where there is fused multiply-add, to the bit.
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

/// Whether settings leave tokens out, so that there is an edge to find.
__device__ __forceinline__ bool is_cut(const SamplingRow& settings) {
  return settings.inverse_temperature != 0 &&
         (settings.top_k > 0 || settings.top_p < 1 || settings.min_p > 0);
}

/// Draws from the rows that are not cut, with args.workspace. Launches on `stream`.
void sample_in_parts(const SampleArgs& args, Stream stream);

}  // namespace primerl::cuda
