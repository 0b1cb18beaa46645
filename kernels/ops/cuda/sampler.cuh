/// What the samplers share, which have a block, several blocks or a cluster of blocks for a row: the
/// CPU's weights, masses and draws.
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

/// Ids of each of `num_ranges` ranges of a row, a multiple of kWarp.
__host__ __device__ constexpr int ids_of_range(int size, int num_ranges) {
  return (size + num_ranges * kWarp - 1) / (num_ranges * kWarp) * kWarp;
}

/// Of a row that is not cut, the words thread, thread + num_threads, ... of its kept set.
__device__ __forceinline__ void keep_all(const SampleArgs& args, int64_t row, int thread,
                                         int num_threads) {
  if (args.kept == nullptr) return;
  const int size = static_cast<int>(args.vocab_size), num_words = (size + kWarp - 1) / kWarp;
  for (int i = thread; i < num_words; i += num_threads)
    args.kept[row * num_words + i] =
        i + 1 < num_words || size % kWarp == 0 ? kAllLanes : (1U << size % kWarp) - 1;
}

/// The token at which the mass by rising id is beyond this is drawn; less than `total`.
__device__ __forceinline__ Mass drawn_mass(const SampleArgs& args, int64_t row, Mass total) {
  const double uniform = uniform_of(args.settings[row].seed, args.indices[row]);
  const Mass wanted = static_cast<Mass>(uniform * static_cast<double>(total));
  return wanted < total ? wanted : total - 1;
}

/// The first id from `begin` on at which the mass by rising id is beyond `left`; one block, each
/// thread some ids in a row. There is one below `end`.
template <int kThreads, class T>
__device__ int draw_in_range(const T* logits, int begin, int end, float inverse, float largest,
                             Mass left) {
  __shared__ Mass of_warps[kThreads / kWarp];
  __shared__ int chosen;
  const auto mass_at = [&](int i) {
    return mass_of(exp_of(__fmaf_rn(to_float(logits[i]), inverse, -largest)));
  };
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const int per_thread = (end - begin + kThreads - 1) / kThreads;
  const int first = begin + thread * per_thread, last = min(first + per_thread, end);
  Mass own = 0;
#pragma unroll 4
  for (int i = first; i < last; ++i) own += mass_at(i);
  Mass until = own;  // of the warp's lanes up to this one
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const Mass other = __shfl_up_sync(kAllLanes, until, step);
    if (lane >= step) until += other;
  }
  if (lane == kWarp - 1) of_warps[warp] = until;
  __syncthreads();
  for (int i = 0; i < warp; ++i) until += of_warps[i];
  if (until - own <= left && left < until) {  // true of one thread
    int i = first;
    for (Mass before = until - own + mass_at(i); before <= left; before += mass_at(i)) ++i;
    chosen = i;
  }
  __syncthreads();
  return chosen;
}

/// Draws from the rows that are not cut. Launches on `stream`; false: nothing, because the device
/// has no clusters of blocks or a row does not fit into one.
bool sample_in_clusters(const SampleArgs& args, Stream stream);
/// The same on any device, with args.workspace.
void sample_in_parts(const SampleArgs& args, Stream stream);

}  // namespace primerl::cuda
