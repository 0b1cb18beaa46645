// Norm of q and k, rotary embedding, write to the cache: one warp per head of a row, lane i with
// the channels i, i + 32, ... The two channels of a RoPE pair are exchanged through shared memory.
// Backward: a fixed number of blocks walks the rows, each with sums of its own for the weights of
// the norms.
#include <algorithm>

#include "kernels/cuda/ops/rope.cuh"

namespace primerl::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int64_t kPartsMax = 1024;

/// The slot of the row's key and value; below 0: they are not written.
__device__ __forceinline__ int64_t slot_of(const PagedRotaryArgs& args, int64_t row) {
  if (args.slots != nullptr) return args.slots[row];
  if (args.block_table == nullptr) return row;
  const int32_t position = args.positions[row], size = args.cache.block_size;
  const int64_t block = args.block_table[row * args.table_stride + position / size];
  return block < 0 ? -1 : block * size + position % size;
}

template <class T, int kSlots, class Delta>
__global__ void __launch_bounds__(kThreads)
    rotary_kernel(PagedRotaryArgs args, const __grid_constant__ Delta lora_delta) {
  __shared__ __align__(16) float shared[kWarps][kSlots * kWarp];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const auto [num_heads, num_kv_heads, d] = args.heads;
  const int num_all = num_heads + 2 * num_kv_heads;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  const int64_t row = at / num_all;
  if (row >= args.rows) return;
  const int head = static_cast<int>(at % num_all);
  float x[kSlots];
  load_head(static_cast<const T*>(args.qkv.data) + at * d, d, lane, x);
  if constexpr (kIsAdapted<Delta>) {
    const LoraDeltaOfHead<T, kSlots> added(lora_delta, row, int64_t{head} * d, d);
    added.add_to(added.ask(lora_delta, row), lane, x, shared[warp]);
  }
  const bool is_query = head < num_heads, is_value = head >= num_heads + num_kv_heads;
  if (!is_value) {
    const void* weight = is_query ? args.q_weight : args.k_weight;
    norm_and_rope<T>(args, weight, args.positions[row], lane, x, shared[warp]);
  }
  if (is_query)
    return store_head(static_cast<T*>(args.q) + (row * num_heads + head) * d, d, lane, x);
  T* cache = static_cast<T*>(is_value ? args.cache.values : args.cache.keys);
  if (cache == nullptr) return;
  const int64_t slot = slot_of(args, row), size = args.cache.block_size;
  if (slot < 0) return;
  const int64_t of_kv = head - num_heads - (is_value ? num_kv_heads : 0);
  cache += slot / size * args.cache.block_stride + slot % size * args.cache.row_stride +
           of_kv * args.cache.head_stride;
  store_head(cache, d, lane, x);
}

/// One head of one row: dx from dout, and adds its part to dweight.
template <class T, int kSlots>
__device__ __forceinline__ void rotate_back(const RotaryBackwardArgs& args, int64_t row,
                                            const T* from, const T* weight, const T* dout, T* dx,
                                            float (&dweight)[kSlots], float* shared) {
  const int lane = threadIdx.x % kWarp, d = args.heads.head_dim;
  const int64_t angle = static_cast<int64_t>(args.positions[row]) * (args.rotary_dim / 2);
  float g[kSlots];
  load_head(dout, d, lane, g);
  apply_rope(g, args.cosine + angle, args.sine + angle, args.rotary_dim, lane, -1.0F, shared);
  if (weight != nullptr) {
    float x[kSlots], w[kSlots];
    load_head(from, d, lane, x);
    load_head(weight, d, lane, w);
    const float inverse = inverse_rms(x, d, args.epsilon);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      x[i] *= inverse;
      dweight[i] += g[i] * x[i];
      g[i] *= w[i];
      sum += g[i] * x[i];
    }
    const float mean = warp_sum(sum) / static_cast<float>(d);
#pragma unroll
    for (int i = 0; i < kSlots; ++i) g[i] = inverse * (g[i] - x[i] * mean);
  }
  store_head(dx, d, lane, g);
}

/// Adds the warps' sums in order and writes them to the block's part.
template <int kSlots>
__device__ __forceinline__ void write_part(const float (&sums)[kSlots], int head_dim,
                                           float (*shared)[kSlots * kWarp], float* part) {
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSlots; ++i)
    shared[threadIdx.x / kWarp][threadIdx.x % kWarp + i * kWarp] = sums[i];
  __syncthreads();
  for (int channel = threadIdx.x; channel < head_dim; channel += kThreads) {
    float sum = 0;
    for (int warp = 0; warp < kWarps; ++warp) sum += shared[warp][channel];
    part[channel] = sum;
  }
}

template <class T, int kSlots>
__global__ void __launch_bounds__(kThreads) rotary_backward_kernel(RotaryBackwardArgs args) {
  __shared__ float shared[kWarps][kSlots * kWarp];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const auto [num_heads, num_kv_heads, d] = args.heads;
  const T* q_weight = static_cast<const T*>(args.q_weight);
  const T* k_weight = static_cast<const T*>(args.k_weight);
  float dq_weight[kSlots] = {}, dk_weight[kSlots] = {};
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const int64_t begin = row * (num_heads + 2 * num_kv_heads) * d;
    const T* from = static_cast<const T*>(args.qkv) + begin;
    T* to = static_cast<T*>(args.dqkv) + begin;
    const T* dq = static_cast<const T*>(args.dq) + row * num_heads * d;
    const T* dkeys = static_cast<const T*>(args.dkeys) + row * num_kv_heads * d;
    const T* dvalues = static_cast<const T*>(args.dvalues) + row * num_kv_heads * d;
    for (int h = warp; h < num_heads; h += kWarps)
      rotate_back(args, row, from + h * d, q_weight, dq + h * d, to + h * d, dq_weight,
                  shared[warp]);
    from += num_heads * d;
    to += num_heads * d;
    for (int h = warp; h < num_kv_heads; h += kWarps)
      rotate_back(args, row, from + h * d, k_weight, dkeys + h * d, to + h * d, dk_weight,
                  shared[warp]);
    to += num_kv_heads * d;
    for (int h = warp; h < num_kv_heads; h += kWarps) {
      float x[kSlots];
      load_head(dvalues + h * d, d, lane, x);
      store_head(to + h * d, d, lane, x);
    }
  }
  float* part = args.workspace + static_cast<int64_t>(blockIdx.x) * 2 * d;
  if (q_weight != nullptr) write_part(dq_weight, d, shared, part);
  if (k_weight != nullptr) write_part(dk_weight, d, shared, part + d);
}

int64_t num_parts(int64_t rows) { return std::min(rows, kPartsMax); }

template <class T, int kSlots>
void start(const PagedRotaryArgs& args, Stream stream) {
  const int64_t heads = args.rows * (args.heads.num_heads + 2 * args.heads.num_kv_heads);
  const auto blocks = static_cast<unsigned>(divide_up(heads, kWarps));
  if (args.qkv.lora_delta == nullptr)
    rotary_kernel<T, kSlots><<<blocks, kThreads, 0, stream>>>(args, NoLoraDelta{});
  else
    rotary_kernel<T, kSlots><<<blocks, kThreads, 0, stream>>>(args, *args.qkv.lora_delta);
}
template <class T, int kSlots>
void start(const RotaryBackwardArgs& args, Stream stream) {
  const int64_t parts = num_parts(args.rows), d = args.heads.head_dim;
  rotary_backward_kernel<T, kSlots><<<static_cast<unsigned>(parts), kThreads, 0, stream>>>(args);
  if (args.q_weight != nullptr) add_parts(args.workspace, parts, d, 2 * d, args.dq_weight, stream);
  if (args.k_weight != nullptr)
    add_parts(args.workspace + d, parts, d, 2 * d, args.dk_weight, stream);
}

template <class T, class Args>
void with_slots(const Args& args, Stream stream) {
  if (args.heads.head_dim <= 2 * kWarp)
    start<T, 2>(args, stream);
  else if (args.heads.head_dim <= 4 * kWarp)
    start<T, 4>(args, stream);
  else
    start<T, 8>(args, stream);
}

template <class Args>
Outcome with_type(const Args& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  if (args.type == Type::kFloat32)
    with_slots<float>(args, stream);
  else
    with_slots<Bf16>(args, stream);
  return launched();
}

}  // namespace

Outcome rotary(const PagedRotaryArgs& args, Stream stream) { return with_type(args, stream); }

int64_t rotary_workspace(int64_t rows, int32_t head_dim) { return num_parts(rows) * 2 * head_dim; }

Outcome rotary_backward(const RotaryBackwardArgs& args, Stream stream) {
  return with_type(args, stream);
}

}  // namespace primerl::cuda
