// Sampling of rows that nothing is cut from, each by several blocks: the greatest logit of each
// part of a row, then the mass of each part and warp, then a block a row that finds the range of
// the draw and in it the token. Masses are whole numbers, so that parts change no token; sums of
// floats, which only the log-probability has, are added part by part.
#include <climits>

#include "kernels/ops/cuda/sampler.cuh"

namespace primerl::cuda {
namespace {

constexpr int kParts = 16;
constexpr int kPartThreads = 256;
constexpr int kPartWarps = kPartThreads / kWarp;

struct RowPart {
  Mass mass;
  Mass of_warps[kPartWarps];
  float sum;
  float largest;
  int best;  // the first id of the greatest logit of the row; INT_MAX: none
  int unused;
};

/// Ids of a warp: a row is cut into kParts parts, these into a range for each warp.
__device__ __forceinline__ int range_size(int size) {
  return ids_of_range(size, kParts * kPartWarps);
}
/// This thread's walk over its part: ids first, first + 32, ... below end, of its warp's range.
struct PartWalk {
  int first;
  int end;
};
__device__ __forceinline__ PartWalk walk_of(int size, int part) {
  const int per_warp = range_size(size);
  const int begin = (part * kPartWarps + static_cast<int>(threadIdx.x) / kWarp) * per_warp;
  return {begin + static_cast<int>(threadIdx.x) % kWarp, min(begin + per_warp, size)};
}

__device__ __forceinline__ RowPart* parts_of(const SampleArgs& args, int64_t row) {
  return static_cast<RowPart*>(args.workspace) + row * kParts;
}
__device__ __forceinline__ float largest_of(const RowPart* parts) {
  float largest = -INFINITY;
  for (int i = 0; i < kParts; ++i) largest = fmaxf(largest, parts[i].largest);
  return largest;
}

template <class T>
__global__ void __launch_bounds__(kPartThreads) part_largest_kernel(SampleArgs args) {
  __shared__ float of_warps[kPartWarps];
  const int64_t row = blockIdx.y;
  const SamplingRow settings = args.settings[row];
  if (is_cut(settings)) return;
  const float inverse = settings.inverse_temperature == 0 ? 1.0F : settings.inverse_temperature;
  const T* logits = static_cast<const T*>(args.logits) + row * args.row_stride;
  const PartWalk walk = walk_of(static_cast<int>(args.vocab_size), blockIdx.x);
  float largest = -INFINITY;
#pragma unroll 8
  for (int i = walk.first; i < walk.end; i += kWarp)
    largest = fmaxf(largest, __fmul_rn(to_float(logits[i]), inverse));
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = largest;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 0; i < kPartWarps; ++i) largest = fmaxf(largest, of_warps[i]);
  parts_of(args, row)[blockIdx.x].largest = largest;
}

template <class T>
__global__ void __launch_bounds__(kPartThreads) part_sums_kernel(SampleArgs args) {
  __shared__ float sums[kPartWarps];
  __shared__ Mass masses[kPartWarps];
  __shared__ int bests[kPartWarps];
  const int64_t row = blockIdx.y;
  const SamplingRow settings = args.settings[row];
  if (is_cut(settings)) return;
  const float inverse = settings.inverse_temperature == 0 ? 1.0F : settings.inverse_temperature;
  const T* logits = static_cast<const T*>(args.logits) + row * args.row_stride;
  RowPart* parts = parts_of(args, row);
  const float largest = largest_of(parts);
  const PartWalk walk = walk_of(static_cast<int>(args.vocab_size), blockIdx.x);
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
  sum = warp_sum(sum);
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) mass += __shfl_xor_sync(kAllLanes, mass, step);
  best = __reduce_min_sync(kAllLanes, best);
  const int warp = threadIdx.x / kWarp;
  if (threadIdx.x % kWarp == 0) {
    sums[warp] = sum;
    masses[warp] = mass;
    bests[warp] = best;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kPartWarps; ++i) {
    sum += sums[i];
    mass += masses[i];
    best = min(best, bests[i]);
  }
  RowPart& part = parts[blockIdx.x];
  part.sum = sum;
  part.mass = mass;
  part.best = best;
  for (int i = 0; i < kPartWarps; ++i) part.of_warps[i] = masses[i];
}

template <class T>
__global__ void __launch_bounds__(kPartThreads) part_draw_kernel(SampleArgs args) {
  const int64_t row = blockIdx.x;
  const SamplingRow settings = args.settings[row];
  if (is_cut(settings)) return;
  const bool is_greedy = settings.inverse_temperature == 0;
  const float inverse = is_greedy ? 1.0F : settings.inverse_temperature;
  const T* logits = static_cast<const T*>(args.logits) + row * args.row_stride;
  const int size = static_cast<int>(args.vocab_size);
  keep_all(args, row, threadIdx.x, kPartThreads);
  const RowPart* parts = parts_of(args, row);
  const float largest = largest_of(parts);
  float sum = 0;
  Mass total = 0;
  int best = INT_MAX;
  for (int i = 0; i < kParts; ++i) {
    sum += parts[i].sum;
    total += parts[i].mass;
    best = min(best, parts[i].best);
  }
  const float log_normalizer = largest + logf(sum);
  const bool is_broken = !(sum > 0.5F) || !isfinite(log_normalizer);
  if (is_broken || is_greedy) {
    if (threadIdx.x != 0) return;
    args.tokens[row] = is_broken ? 0 : best;
    args.logprobs[row] = is_broken ? NAN : largest - log_normalizer;
    return;
  }
  Mass left = drawn_mass(args, row, total);
  int part = 0;
  for (; left >= parts[part].mass; ++part) left -= parts[part].mass;
  int range = part * kPartWarps;
  for (const Mass* mass = parts[part].of_warps; left >= *mass; ++mass, ++range) left -= *mass;
  const int size_of_range = range_size(size), begin = range * size_of_range;
  const int chosen = draw_in_range<kPartThreads>(
      logits, begin, min(begin + size_of_range, size), inverse, largest, left);
  if (threadIdx.x != 0) return;
  args.tokens[row] = chosen;
  args.logprobs[row] = __fmaf_rn(to_float(logits[chosen]), inverse, -log_normalizer);
}

template <class T>
void start_parts(const SampleArgs& args, Stream stream) {
  const auto rows = static_cast<unsigned>(args.rows);
  const dim3 blocks(kParts, rows);
  part_largest_kernel<T><<<blocks, kPartThreads, 0, stream>>>(args);
  part_sums_kernel<T><<<blocks, kPartThreads, 0, stream>>>(args);
  part_draw_kernel<T><<<rows, kPartThreads, 0, stream>>>(args);
}

}  // namespace

void sample_in_parts(const SampleArgs& args, Stream stream) {
  if (args.type == Type::kFloat32)
    start_parts<float>(args, stream);
  else
    start_parts<Bf16>(args, stream);
}

int64_t sample_workspace(int64_t rows) {
  return rows * kParts * static_cast<int64_t>(sizeof(RowPart));
}

}  // namespace primerl::cuda
