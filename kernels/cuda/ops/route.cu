// Expert choice: one warp per row, with the scores in shared memory. Sorting by expert: one block
// per expert. Each warp reads a range of the pairs twice, once to count and once to write.
#include "kernels/cuda/ops/device.cuh"

namespace primerl::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;

struct Choice {
  float value = -INFINITY;
  int32_t id = 0x7fffffff;
};
/// NaN counts as -infinity; of equal values the lower id wins.
__device__ __forceinline__ bool is_better(Choice a, Choice b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}
__device__ __forceinline__ Choice best_of_warp(Choice best) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Choice other{__shfl_xor_sync(kAllLanes, best.value, step),
                       __shfl_xor_sync(kAllLanes, best.id, step)};
    if (is_better(other, best)) best = other;
  }
  return best;
}

/// Ids of the `wanted` greatest of values[0, count), by falling value. values is overwritten.
__device__ void select_greatest(float* values, int32_t count, int32_t wanted, int32_t* ids) {
  const int lane = threadIdx.x % kWarp;
  const float taken = NAN;  // not greater than -infinity, and distinct from it
  for (int i = lane; i < count; i += kWarp)
    if (isnan(values[i])) values[i] = -INFINITY;
  for (int32_t n = 0; n < wanted; ++n) {
    __syncwarp();
    Choice best;
    for (int32_t i = lane; i < count; i += kWarp) {
      const Choice one{values[i], i};
      if (!isnan(one.value) && is_better(one, best)) best = one;
    }
    best = best_of_warp(best);
    if (lane == 0) ids[n] = best.id;
    if (lane == 0) values[best.id] = taken;
  }
  __syncwarp();
}

/// Excludes the choices of the groups that are not kept.
__device__ void keep_groups(const RouterShape& shape, float* choices, float* groups,
                            int32_t* kept) {
  const int lane = threadIdx.x % kWarp;
  const int32_t size = shape.num_experts / shape.num_groups;
  for (int32_t g = lane; g < shape.num_groups; g += kWarp) {
    const float* choice = choices + g * size;
    float first = -INFINITY, second = first;
    for (int32_t i = 0; i < size; ++i) {
      if (choice[i] > first) {
        second = first;
        first = choice[i];
      } else if (choice[i] > second) {
        second = choice[i];
      }
    }
    groups[g] = size > 1 ? first + second : first;
  }
  __syncwarp();
  select_greatest(groups, shape.num_groups, shape.groups_kept, kept);
  for (int32_t i = lane; i < shape.num_experts; i += kWarp) {
    bool is_kept = false;
    for (int32_t g = 0; g < shape.groups_kept; ++g) is_kept = is_kept || kept[g] == i / size;
    if (!is_kept) choices[i] = -INFINITY;
  }
  __syncwarp();
}

__device__ void score_experts(const RouterShape& shape, const float* logits, float* scores) {
  const int lane = threadIdx.x % kWarp;
  if (shape.is_sigmoid) {
    for (int32_t i = lane; i < shape.num_experts; i += kWarp) scores[i] = sigmoid(logits[i]);
    return;
  }
  float largest = -INFINITY, sum = 0;
  for (int32_t i = lane; i < shape.num_experts; i += kWarp) largest = fmaxf(largest, logits[i]);
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
  for (int32_t i = lane; i < shape.num_experts; i += kWarp) sum += expf(logits[i] - largest);
  sum = warp_sum(sum);
  for (int32_t i = lane; i < shape.num_experts; i += kWarp)
    scores[i] = expf(logits[i] - largest) / sum;
}

__global__ void __launch_bounds__(kThreads) route_kernel(RouteArgs args) {
  __shared__ float choices_of[kWarps][kExpertsMax];
  __shared__ float groups_of[kWarps][kExpertsMax];
  __shared__ int32_t kept_of[kWarps][kExpertsMax];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  if (row >= args.rows) return;
  const RouterShape& shape = args.shape;
  const int32_t num_experts = shape.num_experts, wanted = shape.experts_per_token;
  float* choices = choices_of[warp];
  int32_t* kept = kept_of[warp];
  float* scores = args.scores + row * num_experts;
  score_experts(shape, args.logits + row * num_experts, scores);
  for (int32_t i = lane; i < num_experts; i += kWarp)
    choices[i] = args.selection_bias == nullptr ? scores[i] : scores[i] + args.selection_bias[i];
  __syncwarp();
  if (shape.groups_kept < shape.num_groups) keep_groups(shape, choices, groups_of[warp], kept);
  select_greatest(choices, num_experts, wanted, kept);
  float sum = 0;
  for (int32_t i = 0; i < wanted; ++i) sum += scores[kept[i]];
  const float divisor = shape.is_normalized ? sum + shape.epsilon : 1.0F;
  for (int32_t i = lane; i < wanted; i += kWarp) {
    args.experts[row * wanted + i] = kept[i];
    args.weights[row * wanted + i] = scores[kept[i]] / divisor * shape.scale;
  }
}

__global__ void __launch_bounds__(kThreads) route_backward_kernel(RouteBackwardArgs args) {
  const int lane = threadIdx.x % kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= args.rows) return;
  const RouterShape& shape = args.shape;
  const int32_t num_experts = shape.num_experts, wanted = shape.experts_per_token;
  const float* scores = args.scores + row * num_experts;
  const int32_t* experts = args.experts + row * wanted;
  const float* dweights = args.dweights + row * wanted;
  float* dlogits = args.dlogits + row * num_experts;
  float sum = shape.epsilon, weighted = 0, total = 0;
  for (int32_t i = 0; i < wanted; ++i) sum += scores[experts[i]];
  for (int32_t i = 0; i < wanted; ++i) weighted += dweights[i] * scores[experts[i]] / sum;
  const auto grad = [&](int32_t i) {
    return (shape.is_normalized ? (dweights[i] - weighted) / sum : dweights[i]) * shape.scale;
  };
  for (int32_t i = 0; i < wanted; ++i) total += grad(i) * scores[experts[i]];
  for (int32_t i = lane; i < num_experts; i += kWarp) {
    float d = 0;
    for (int32_t k = 0; k < wanted; ++k)
      if (experts[k] == i) d = grad(k);
    dlogits[i] = shape.is_sigmoid ? d * scores[i] * (1.0F - scores[i]) : (d - total) * scores[i];
  }
}

constexpr int kSortThreads = 512;
constexpr int kSortWarps = kSortThreads / kWarp;

/// Pairs of lower expert ids come before this block's, and pairs of earlier warps before this
/// warp's.
__global__ void __launch_bounds__(kSortThreads) sort_kernel(SortByExpertArgs args) {
  __shared__ int32_t lower_of[kSortWarps], equal_of[kSortWarps];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const auto expert = static_cast<int32_t>(blockIdx.x);
  const auto pairs = static_cast<int32_t>(args.rows * args.experts_per_token);
  const int32_t rounds = (pairs + kSortThreads - 1) / kSortThreads;
  const int32_t begin = warp * rounds * kWarp;
  int32_t lower = 0, equal = 0;
  for (int32_t round = 0; round < rounds; ++round) {
    const int32_t pair = begin + round * kWarp + lane;
    const int32_t of_pair = pair < pairs ? args.experts[pair] : args.num_experts;
    lower += __popc(__ballot_sync(kAllLanes, of_pair < expert));
    equal += __popc(__ballot_sync(kAllLanes, of_pair == expert));
  }
  if (lane == 0) lower_of[warp] = lower;
  if (lane == 0) equal_of[warp] = equal;
  __syncthreads();
  int32_t next = 0, end = 0;
  for (int i = 0; i < kSortWarps; ++i) {
    next += lower_of[i] + (i < warp ? equal_of[i] : 0);
    end += lower_of[i] + equal_of[i];
  }
  if (threadIdx.x == 0) args.ends[expert] = end;
  for (int32_t round = 0; round < rounds; ++round) {
    const int32_t pair = begin + round * kWarp + lane;
    const bool is_mine = pair < pairs && args.experts[pair] == expert;
    const unsigned mine = __ballot_sync(kAllLanes, is_mine);
    if (is_mine) {
      const int32_t at = next + __popc(mine & ((1U << static_cast<unsigned>(lane)) - 1));
      args.permutation[pair] = at;
      args.sources[at] = pair / args.experts_per_token;
    }
    next += __popc(mine);
  }
}

}  // namespace

Outcome route(const RouteArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args.shape, args.rows); fault != nullptr) return {fault};
  const auto blocks = static_cast<unsigned>(divide_up(args.rows, kWarps));
  route_kernel<<<blocks, kThreads, 0, stream>>>(args);
  return launched();
}

Outcome route_backward(const RouteBackwardArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args.shape, args.rows); fault != nullptr) return {fault};
  const auto blocks = static_cast<unsigned>(divide_up(args.rows, kWarps));
  route_backward_kernel<<<blocks, kThreads, 0, stream>>>(args);
  return launched();
}

Outcome sort_by_expert(const SortByExpertArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  sort_kernel<<<static_cast<unsigned>(args.num_experts), kSortThreads, 0, stream>>>(args);
  return launched();
}

}  // namespace primerl::cuda
