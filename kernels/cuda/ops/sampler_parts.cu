// Sums of rows without top_k and top_p, each by several blocks, on any device: the maximum of each
// part of a row, then the mass of each range. Masses are whole numbers, so ranges change no token.
// Float sums, which only the log-probability uses, are added range by range.
#include <climits>

#include "kernels/cuda/ops/sampler.cuh"

namespace primerl::cuda {
namespace {

constexpr int kParts = kLargestParts;
constexpr int kPartWarps = kRanges / kParts;
constexpr int kPartThreads = kPartWarps * kWarp;

/// This thread's ids in the range of its warp: first, first + 32, ... below end.
struct RangeWalk {
  int range;
  int first;
  int end;
};
__device__ __forceinline__ RangeWalk walk_of(int size) {
  const int per_warp = range_size(size), thread = static_cast<int>(threadIdx.x);
  const int range = static_cast<int>(blockIdx.x) * kPartWarps + thread / kWarp;
  const int begin = range * per_warp;
  return {range, begin + thread % kWarp, min(begin + per_warp, size)};
}

template <class T>
__global__ void __launch_bounds__(kPartThreads) part_largest_kernel(SampleArgs args) {
  __shared__ float of_warps[kPartWarps];
  const int64_t row = blockIdx.y;
  const SamplingRow settings = args.settings[row];
  if (is_cut(settings)) return;
  const float inverse = settings.inverse_temperature == 0 ? 1.0F : settings.inverse_temperature;
  const T* logits = static_cast<const T*>(args.logits) + row * args.row_stride;
  const RangeWalk walk = walk_of(static_cast<int>(args.vocab_size));
  float largest = -INFINITY;
#pragma unroll 8
  for (int i = walk.first; i < walk.end; i += kWarp)
    largest = fmaxf(largest, __fmul_rn(to_float(logits[i]), inverse));
  largest = warp_max(largest);
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = largest;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 0; i < kPartWarps; ++i) largest = fmaxf(largest, of_warps[i]);
  sums_of(args, row).largest[blockIdx.x] = largest;
}

template <class T>
__global__ void __launch_bounds__(kPartThreads) part_sums_kernel(SampleArgs args) {
  const int64_t row = blockIdx.y;
  const SamplingRow settings = args.settings[row];
  if (is_cut(settings)) return;
  const float inverse = settings.inverse_temperature == 0 ? 1.0F : settings.inverse_temperature;
  const T* logits = static_cast<const T*>(args.logits) + row * args.row_stride;
  RowSums& sums = sums_of(args, row);
  const float largest = largest_of(sums);
  const RangeWalk walk = walk_of(static_cast<int>(args.vocab_size));
  float sum = 0;
  Mass mass = 0;
  int best = INT_MAX;
#pragma unroll 8
  for (int i = walk.first; i < walk.end; i += kWarp) {
    const float logit = to_float(logits[i]);
    const float weight = exp_of(__fmaf_rn(logit, inverse, -largest));
    sum += weight;
    mass += mass_of(weight);
    if (best == INT_MAX && logit == largest) best = i;
  }
  const RangeSums all{warp_total(mass), warp_sum(sum), __reduce_min_sync(kAllLanes, best)};
  if (threadIdx.x % kWarp == 0) sums.ranges[walk.range] = all;
}

template <class T>
void start_parts(const SampleArgs& args, Stream stream) {
  const dim3 blocks(kParts, static_cast<unsigned>(args.rows));
  part_largest_kernel<T><<<blocks, kPartThreads, 0, stream>>>(args);
  part_sums_kernel<T><<<blocks, kPartThreads, 0, stream>>>(args);
}

}  // namespace

void sum_in_parts(const SampleArgs& args, Stream stream) {
  if (args.type == Type::kFloat32)
    start_parts<float>(args, stream);
  else
    start_parts<Bf16>(args, stream);
}

int64_t sample_workspace(int64_t rows) { return rows * static_cast<int64_t>(sizeof(RowSums)); }

}  // namespace primerl::cuda
