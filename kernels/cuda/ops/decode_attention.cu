// Attention of one query per row over a paged cache. A block has a row, up to kGroup query heads of
// one key-value head, and a part of the context. A team of head_dim / 8 lanes processes a few
// adjacent keys (they are in one block of the cache), each lane 8 channels. The results of teams,
// and then of the parts of the context, are combined in order. Shared memory is a ring of stages:
// keys and values of the next stages are copied while one stage is used. A thread reads only its
// own copies, so threads do not wait for each other. If RoPE is applied first, each warp has a head
// of the row.
#include "kernels/cuda/ops/decode_keys.cuh"
#include "kernels/cuda/ops/rope.cuh"

namespace primerl::cuda {
namespace {

constexpr float kLowest = -1e30F;
constexpr float kLog2E = 1.44269504088896341F;

/// The result of a part of the context for one head: out = sum / total, weights e^(z - largest).
struct PartStats {
  float largest;  // of the scores, in powers of two
  float total;
};

/// Writes one channel of a head, after its parts are combined.
template <class T>
__device__ __forceinline__ void finish(const DecodeAttentionArgs& args, int64_t head, int channel,
                                       float sum, PartStats stats) {
  if (args.sinks != nullptr) {
    const float sink = args.sinks[head] * kLog2E, largest = fmaxf(stats.largest, sink);
    const float shrink = exp2f(stats.largest - largest);
    sum *= shrink;
    stats.total = stats.total * shrink + exp2f(sink - largest);
  }
  const int64_t at = blockIdx.x * static_cast<int64_t>(args.heads.num_heads) + head;
  const float out = stats.total > 0 ? sum / stats.total : 0.0F;
  static_cast<T*>(args.out)[at * args.heads.head_dim + channel] = from_float<T>(out);
}

/// The heads of a row to which a block applies RoPE, one after the other by each warp: queries,
/// then key and value. Key and value are written to `offset` of the cache; below 0: they are not
/// written.
struct RopeHeads {
  HeadShape heads;
  int first_head, count, kv_head;
  int64_t offset;

  /// The index of a head of the row; below 0: the task has no head.
  template <int kGroup>
  __device__ __forceinline__ int head_of(int task) const {
    if (task < kGroup) return task < count ? first_head + task : -1;
    if (offset < 0 || task > kGroup + 1) return -1;
    return heads.num_heads + kv_head + (task - kGroup) * heads.num_kv_heads;
  }
  __device__ __forceinline__ int64_t row_heads() const {
    return heads.num_heads + int64_t{2} * heads.num_kv_heads;
  }
};

/// The LoRA delta of each warp's first head is loaded before the row is available.
template <class T, int kDim, int kGroup, class Delta>
__device__ __forceinline__ auto ask_added(const RopeHeads& heads_of_block,
                                          const Delta& lora_delta) {
  if constexpr (kIsAdapted<Delta>) {
    const int head = max(heads_of_block.head_of<kGroup>(threadIdx.x / kWarp), 0);
    return LoraDeltaOfHead<T, kDim / kWarp>(lora_delta, blockIdx.x, int64_t{head} * kDim, kDim);
  } else {
    return NoLoraDelta{};
  }
}

/// Queries, rounded as rotary() writes them, go to `queries`.
template <class T, int kDim, int kGroup, class Delta, class Added>
__device__ __forceinline__ void apply_rope_to_row(const PagedRotaryArgs& rope,
                                                  const DecodeAttentionArgs& args,
                                                  const RopeHeads& heads_of_block,
                                                  const Delta& lora_delta, const Added& first_added,
                                                  float (&queries)[kGroup][kDim],
                                                  float (*shared)[kDim]) {
  constexpr int kSlots = kDim / kWarp;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int position = max(args.lengths[blockIdx.x] - 1, 0);
  const T* heads =
      static_cast<const T*>(rope.qkv.data) + blockIdx.x * heads_of_block.row_heads() * kDim;
  for (int task = warp; task < kGroup + 2; task += kDecodeThreads / kWarp) {
    const bool is_query = task < kGroup, is_value = task == kGroup + 1;
    const int head = heads_of_block.head_of<kGroup>(task);
    if (head < 0) continue;
    float x[kSlots];
    load_head(heads + head * kDim, kDim, lane, x);
    if constexpr (kIsAdapted<Delta>) {
      const auto add = [&](const Added& added) {
        added.add_to(added.ask(lora_delta, blockIdx.x), lane, x, shared[warp]);
      };
      if (kGroup + 2 <= kDecodeThreads / kWarp || task == warp)
        add(first_added);
      else
        add(Added(lora_delta, blockIdx.x, int64_t{head} * kDim, kDim));
    }
    if (!is_value)
      norm_and_rope<T>(rope, is_query ? rope.q_weight : rope.k_weight, position, lane, x,
                       shared[warp]);
    if (is_query) {
#pragma unroll
      for (int i = 0; i < kSlots; ++i) queries[task][lane + i * kWarp] = rounded<T>(x[i]);
    } else {
      store_head(
          static_cast<T*>(is_value ? args.cache.values : args.cache.keys) + heads_of_block.offset,
          kDim, lane, x);
    }
  }
}

/// The softmax of a team's keys so far: sums of values with weights e^(score - largest).
template <class Shape>
class TeamSums {
 public:
  static constexpr int kGroup = Shape::kGroup, kKeys = Shape::kKeys;
  using Query = float[kGroup][kDecodeChannels];

  __device__ __forceinline__ TeamSums() {
#pragma unroll
    for (int g = 0; g < kGroup; ++g) largest_[g] = kLowest;
  }

  /// Adds a stage, whose first key is t.
  template <class Keys>
  __device__ __forceinline__ void add(const Keys& keys, int stage, int t, const Query& query) {
    float scores[kKeys][kGroup] = {};
    multiply(keys, stage, query, scores);
    bool is_seen[kKeys];
#pragma unroll
    for (int k = 0; k < kKeys; ++k) is_seen[k] = keys.is_seen(t + k);
    weigh(is_seen, scores);
#pragma unroll
    for (int k = 0; k < kKeys; ++k)
      if (is_seen[k]) {
        const auto value = keys.value(stage, k);
#pragma unroll
        for (int c = 0; c < kDecodeChannels; ++c) {
          const float v = to_float(value.at[c]);
#pragma unroll
          for (int g = 0; g < kGroup; ++g) sum_[g][c] += scores[k][g] * v;
        }
      }
  }
  /// Writes the sums and statistics of the team.
  __device__ __forceinline__ void write(float (&sums)[kGroup][Shape::kDim],
                                        PartStats (&stats)[kGroup]) const {
    const int lane = Shape::lane();
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
#pragma unroll
      for (int c = 0; c < kDecodeChannels; ++c) sums[g][lane * kDecodeChannels + c] = sum_[g][c];
      if (lane == 0) stats[g] = {largest_[g], total_[g]};
    }
  }

 private:
  /// The scores of a stage's keys.
  template <class Keys>
  static __device__ __forceinline__ void multiply(const Keys& keys, int stage, const Query& query,
                                                  float (&scores)[kKeys][kGroup]) {
#pragma unroll
    for (int k = 0; k < kKeys; ++k) {
      const auto key = keys.key(stage, k);
#pragma unroll
      for (int g = 0; g < kGroup; ++g)
#pragma unroll
        for (int c = 0; c < kDecodeChannels; ++c) scores[k][g] += to_float(key.at[c]) * query[g][c];
    }
    // Lanes of other teams may be in another stage.
    constexpr int kLanes = Shape::kLanes;
    const unsigned team_mask = kLanes == kWarp ? kAllLanes
                                               : ((1U << (kLanes % kWarp)) - 1U)
                                                     << (threadIdx.x % kWarp / kLanes * kLanes);
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2)
#pragma unroll
      for (int k = 0; k < kKeys; ++k)
#pragma unroll
        for (int g = 0; g < kGroup; ++g)
          scores[k][g] += __shfl_xor_sync(team_mask, scores[k][g], step);
  }
  /// Makes weights of the scores, and scales what was added before.
  __device__ __forceinline__ void weigh(const bool (&is_seen)[kKeys],
                                        float (&scores)[kKeys][kGroup]) {
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      float most = largest_[g];
#pragma unroll
      for (int k = 0; k < kKeys; ++k)
        if (is_seen[k]) most = fmaxf(most, scores[k][g]);
      const float shrink = exp2f(largest_[g] - most);
      largest_[g] = most;
      total_[g] *= shrink;
#pragma unroll
      for (int c = 0; c < kDecodeChannels; ++c) sum_[g][c] *= shrink;
#pragma unroll
      for (int k = 0; k < kKeys; ++k) {
        scores[k][g] = is_seen[k] ? exp2f(scores[k][g] - most) : 0.0F;
        total_[g] += scores[k][g];
      }
    }
  }

  float sum_[kGroup][kDecodeChannels] = {};
  float largest_[kGroup], total_[kGroup] = {};
};

/// The lane's channels of the block's queries, from `q`.
template <class Shape, class Heads>
__device__ __forceinline__ void load_queries(const DecodeAttentionArgs& args, const Heads& heads,
                                             float (&query)[Shape::kGroup][kDecodeChannels]) {
  const auto* q =
      static_cast<const typename Shape::Type*>(args.q) + Shape::lane() * kDecodeChannels +
      (static_cast<int64_t>(blockIdx.x) * args.heads.num_heads + heads.first) * Shape::kDim;
#pragma unroll
  for (int g = 0; g < Shape::kGroup; ++g)
    if (g < heads.count) load(q + g * Shape::kDim, query[g]);
}

/// The same from qkv: applies RoPE to the row, and writes its key and value to the cache.
template <class Shape, class Heads, class Keys, class Delta>
__device__ __forceinline__ void rope_queries(const PagedRotaryArgs& rope,
                                             const DecodeAttentionArgs& args, const Heads& heads,
                                             const Delta& lora_delta, Keys& keys,
                                             float (&query)[Shape::kGroup][kDecodeChannels]) {
  using T = typename Shape::Type;
  constexpr int kDim = Shape::kDim, kGroup = Shape::kGroup;
  __shared__ __align__(16) float queries[kGroup][kDim], shared[kDecodeThreads / kWarp][kDim];
  const RopeHeads heads_of_block{args.heads, heads.first, heads.count, heads.kv_head,
                                 keys.offset_of_own(heads.kv_head)};
  const auto added = ask_added<T, kDim, kGroup>(heads_of_block, lora_delta);
  wait_for_last_kernel();
  apply_rope_to_row<T>(rope, args, heads_of_block, lora_delta, added, queries, shared);
  __syncthreads();
  keys.copy_own();
#pragma unroll
  for (int g = 0; g < kGroup; ++g)
#pragma unroll
    for (int c = 0; c < kDecodeChannels; ++c)
      query[g][c] = g < heads.count ? queries[g][Shape::lane() * kDecodeChannels + c] : 0.0F;
}

/// Combines the teams in order, and writes the block's part of the result.
template <class Shape, class Heads>
__device__ __forceinline__ void combine_teams(const DecodeAttentionArgs& args, const Heads& heads,
                                              const float (*sums)[Shape::kGroup][Shape::kDim],
                                              const PartStats (*stats)[Shape::kGroup]) {
  constexpr int kDim = Shape::kDim;
  for (int i = threadIdx.x; i < heads.count * kDim; i += kDecodeThreads) {
    const int g = i / kDim, channel = i % kDim;
    PartStats all{kLowest, 0};
    float out = 0;
    for (int n = 0; n < Shape::kTeams; ++n) all.largest = fmaxf(all.largest, stats[n][g].largest);
    for (int n = 0; n < Shape::kTeams; ++n) {
      const float shrink = exp2f(stats[n][g].largest - all.largest);
      all.total += stats[n][g].total * shrink;
      out += sums[n][g][channel] * shrink;
    }
    const int64_t head = heads.first + g;
    if (gridDim.z == 1) {
      finish<typename Shape::Type>(args, head, channel, out, all);
      continue;
    }
    const int64_t part =
        (static_cast<int64_t>(blockIdx.x) * args.heads.num_heads + head) * gridDim.z + blockIdx.z;
    float* to = args.workspace + part * (kDim + 2);
    to[channel] = out;
    if (channel == 0) to[kDim] = all.largest;
    if (channel == 0) to[kDim + 1] = all.total;
  }
}

/// Blocks per multiprocessor: limited by the shared memory of the rings, or by the registers of the
/// LoRA delta.
template <int kDim, int kGroup, class Delta>
constexpr int kBlocksMin = kDim > 128 || kGroup > 2 ? 1 : (kIsAdapted<Delta> ? 5 : 6);

template <class T, int kDim, int kGroup, bool kAppliesRope, class Delta>
__global__ void __launch_bounds__(kDecodeThreads, (kBlocksMin<kDim, kGroup, Delta>))
    decode_kernel(DecodeAttentionArgs args, PagedRotaryArgs rope,
                  const __grid_constant__ Delta lora_delta) {
  using Shape = DecodeShape<T, kDim, kGroup>;
  // At the end the sums of the teams reuse the memory of the ring.
  __shared__ uint4 memory[kDecodeRingBytes / sizeof(uint4)];
  auto* const sums_of_teams = reinterpret_cast<float(*)[kGroup][kDim]>(memory);
  static_assert(sizeof(float) * Shape::kTeams * kGroup * kDim <= kDecodeRingBytes);
  __shared__ PartStats stats[Shape::kTeams][kGroup];
  const HeadsOfBlock<Shape> heads(args.heads);
  TeamKeys<Shape, kAppliesRope> keys(args, heads.kv_head, memory);
  start_next_kernel();
  if constexpr (!kAppliesRope) wait_for_last_kernel();
  keys.start();

  float query[kGroup][kDecodeChannels] = {};
  if constexpr (kAppliesRope)
    rope_queries<Shape>(rope, args, heads, lora_delta, keys, query);
  else
    load_queries<Shape>(args, heads, query);
#pragma unroll
  for (int g = 0; g < kGroup; ++g)
#pragma unroll
    for (int c = 0; c < kDecodeChannels; ++c) query[g][c] *= args.scale * kLog2E;

  TeamSums<Shape> sums;
  keys.for_stages([&](int stage, int t) { sums.add(keys, stage, t, query); });
  __syncthreads();  // the ring is read
  sums.write(sums_of_teams[Shape::team()], stats[Shape::team()]);
  __syncthreads();
  combine_teams<Shape>(args, heads, sums_of_teams, stats);
}

/// One block per row and head, one thread per channel.
template <class T>
__global__ void combine_kernel(DecodeAttentionArgs args) {
  const int d = args.heads.head_dim, channel = threadIdx.x;
  const int64_t head = blockIdx.y, stride = d + 2;
  const float* parts =
      args.workspace +
      (static_cast<int64_t>(blockIdx.x) * args.heads.num_heads + head) * args.num_splits * stride;
  PartStats all{kLowest, 0};
  float out = 0;
  for (int n = 0; n < args.num_splits; ++n) all.largest = fmaxf(all.largest, parts[n * stride + d]);
  for (int n = 0; n < args.num_splits; ++n) {
    const float shrink = exp2f(parts[n * stride + d] - all.largest);
    all.total += parts[n * stride + d + 1] * shrink;
    out += parts[n * stride + channel] * shrink;
  }
  finish<T>(args, head, channel, out, all);
}

template <class T, int kDim, int kGroup>
void start(const DecodeAttentionArgs& args, const PagedRotaryArgs* rope, Stream stream) {
  const int group = args.heads.num_heads / args.heads.num_kv_heads;
  const int tiles = (group + kGroup - 1) / kGroup;
  const dim3 grid(static_cast<unsigned>(args.rows), args.heads.num_kv_heads * tiles,
                  args.num_splits);
  if (rope == nullptr)
    launch(decode_kernel<T, kDim, kGroup, false, NoLoraDelta>, grid, kDecodeThreads, 0, stream,
           args, PagedRotaryArgs{}, NoLoraDelta{});
  else if (rope->qkv.lora_delta == nullptr)
    launch(decode_kernel<T, kDim, kGroup, true, NoLoraDelta>, grid, kDecodeThreads, 0, stream, args,
           *rope, NoLoraDelta{});
  else
    launch(decode_kernel<T, kDim, kGroup, true, LoraDelta>, grid, kDecodeThreads, 0, stream, args,
           *rope, *rope->qkv.lora_delta);
  if (args.num_splits == 1) return;
  const dim3 heads(static_cast<unsigned>(args.rows), args.heads.num_heads);
  combine_kernel<T><<<heads, kDim, 0, stream>>>(args);
}

template <class T, int kDim>
void with_group(const DecodeAttentionArgs& args, const PagedRotaryArgs* rope, Stream stream) {
  const int group = args.heads.num_heads / args.heads.num_kv_heads;
  if (group == 1)
    start<T, kDim, 1>(args, rope, stream);
  else if (group == 2)
    start<T, kDim, 2>(args, rope, stream);
  else if (group <= 4)
    start<T, kDim, 4>(args, rope, stream);
  else
    start<T, kDim, 8>(args, rope, stream);
}

template <class T>
Outcome with_dim(const DecodeAttentionArgs& args, const PagedRotaryArgs* rope, Stream stream) {
  if (args.heads.head_dim == 64)
    with_group<T, 64>(args, rope, stream);
  else if (args.heads.head_dim == 128)
    with_group<T, 128>(args, rope, stream);
  else
    with_group<T, 256>(args, rope, stream);
  return launched();
}

Outcome with_type(const DecodeAttentionArgs& args, const PagedRotaryArgs* rope, Stream stream) {
  return args.type == Type::kFloat32 ? with_dim<float>(args, rope, stream)
                                     : with_dim<Bf16>(args, rope, stream);
}

}  // namespace

Outcome decode_attention(const DecodeAttentionArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  return with_type(args, nullptr, stream);
}

Outcome rope_decode_attention(const PagedRotaryArgs& rope, const DecodeAttentionArgs& args,
                              Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(rope, args); fault != nullptr) return {fault};
  return with_type(args, &rope, stream);
}

int64_t decode_workspace(int64_t rows, const HeadShape& heads, int32_t num_splits) {
  return num_splits == 1 ? 0 : rows * heads.num_heads * num_splits * (heads.head_dim + 2);
}

}  // namespace primerl::cuda
