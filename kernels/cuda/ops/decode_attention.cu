// Attention of one query per row over a paged cache. A block has a row, up to kGroup query heads of
// one key-value head, and a part of the context. A team of head_dim / 8 lanes processes a few
// adjacent keys (they are in one block of the cache), each lane 8 channels. The results of teams,
// and then of the parts of the context, are combined in order. Shared memory is a ring of stages:
// keys and values of the next stages are copied while one stage is used. A thread reads only its
// own copies, so threads do not wait for each other. If RoPE is applied first, each warp has a head
// of the row.
#include <algorithm>

#include "kernels/cuda/ops/pipeline.cuh"
#include "kernels/cuda/ops/rope.cuh"

namespace primerl::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kChannels = 8;  // of a lane
constexpr int kRingBytes = 32 << 10;
constexpr float kLowest = -1e30F;
constexpr float kLog2E = 1.44269504088896341F;

/// The result of a part of the context for one head: out = sum / total, weights e^(z - largest).
struct PartStats {
  float largest;  // of the scores, in powers of two
  float total;
};

struct DecodeRange {
  int begin;   // a multiple of kAlign
  int end;     // one past the last key of the part
  int lowest;  // the first key that the query sees
};
constexpr int kAlign = 4;

__device__ __forceinline__ DecodeRange range_of(const DecodeAttentionArgs& args, int step) {
  const int length = args.lengths[blockIdx.x];
  const int lowest = args.window > 0 ? max(0, length - args.window) : 0;
  const int aligned = lowest / kAlign * kAlign, splits = gridDim.z;
  const int share = (max(0, length - aligned) + splits - 1) / splits;
  const int chunk = (share + step - 1) / step * step;
  const int64_t begin = aligned + static_cast<int64_t>(blockIdx.z) * chunk;
  return {static_cast<int>(min(begin, static_cast<int64_t>(length))),
          static_cast<int>(min(begin + chunk, static_cast<int64_t>(length))), lowest};
}

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

/// A ring of stages in shared memory for keys and values of a team. Each thread reads only its own
/// copies, so it waits only for those. Registers instead of shared memory would let fewer warps fit
/// a multiprocessor, with fewer loads in flight.
template <class T, int kKeys>
class Ring {
 public:
  static constexpr int kPieces = kChannels * static_cast<int>(sizeof(T)) / 16;  // of 16 bytes
  static constexpr int kStagePieces = kThreads * 2 * kKeys * kPieces;
  static constexpr int kStages = kRingBytes / 16 / kStagePieces;
  using Stages = StageRing<kStages, kStagePieces>;
  static_assert(kStages >= 1 && Stages::kBytes == kRingBytes);

  __device__ explicit Ring(uint4* memory) : own_(memory + threadIdx.x) {}

  /// Copies keys and values of one stage, `stride` elements apart.
  __device__ __forceinline__ void ask(int stage, const T* keys, const T* values, int64_t stride) {
#pragma unroll
    for (int k = 0; k < kKeys; ++k) ask_one(stage, k, keys + k * stride);
#pragma unroll
    for (int k = 0; k < kKeys; ++k) ask_one(stage, kKeys + k, values + k * stride);
  }
  __device__ __forceinline__ Pack<T, kChannels> key(int stage, int k) const { return at(stage, k); }
  __device__ __forceinline__ Pack<T, kChannels> value(int stage, int k) const {
    return at(stage, kKeys + k);
  }

 private:
  __device__ __forceinline__ uint4* piece(int stage, int i) const {
    return own_.at(stage) + i * kPieces * kThreads;
  }
  __device__ __forceinline__ void ask_one(int stage, int i, const T* from) {
#pragma unroll
    for (int j = 0; j < kPieces; ++j)
      cp_async(piece(stage, i) + j * kThreads, from + j * kVector<T>);
  }
  __device__ __forceinline__ Pack<T, kChannels> at(int stage, int i) const {
    Pack<T, kChannels> pack;
#pragma unroll
    for (int j = 0; j < kPieces; ++j)
      reinterpret_cast<uint4*>(&pack)[j] = piece(stage, i)[j * kThreads];
    return pack;
  }

  Stages own_;
};

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
  for (int task = warp; task < kGroup + 2; task += kThreads / kWarp) {
    const bool is_query = task < kGroup, is_value = task == kGroup + 1;
    const int head = heads_of_block.head_of<kGroup>(task);
    if (head < 0) continue;
    float x[kSlots];
    load_head(heads + head * kDim, kDim, lane, x);
    if constexpr (kIsAdapted<Delta>) {
      const auto add = [&](const Added& added) {
        added.add_to(added.ask(lora_delta, blockIdx.x), lane, x, shared[warp]);
      };
      if (kGroup + 2 <= kThreads / kWarp || task == warp)
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

/// Blocks per multiprocessor: limited by the shared memory of the rings, or by the registers of the
/// LoRA delta.
template <int kDim, int kGroup, class Delta>
constexpr int kBlocksMin = kDim > 128 || kGroup > 2 ? 1 : (kIsAdapted<Delta> ? 5 : 6);

template <class T, int kDim, int kGroup, bool kAppliesRope, class Delta>
__global__ void __launch_bounds__(kThreads, (kBlocksMin<kDim, kGroup, Delta>))
    decode_kernel(DecodeAttentionArgs args, PagedRotaryArgs rope,
                  const __grid_constant__ Delta lora_delta) {
  constexpr int kLanes = kDim / kChannels, kTeams = kThreads / kLanes;
  constexpr int kKeys = kGroup >= 8 ? 2 : kAlign;  // of a team and stage
  constexpr int kStageKeys = kTeams * kKeys;
  using Keys = Ring<T, kKeys>;
  constexpr int kAhead = Keys::kStages;
  // At the end the sums of the teams reuse the memory of the ring.
  __shared__ uint4 memory[kRingBytes / sizeof(uint4)];
  auto* const sums = reinterpret_cast<float(*)[kGroup][kDim]>(memory);
  static_assert(sizeof(float) * kTeams * kGroup * kDim <= kRingBytes);
  __shared__ PartStats stats[kTeams][kGroup];
  const int team = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const auto [num_heads, num_kv_heads, d] = args.heads;
  const int group = num_heads / num_kv_heads, tiles = (group + kGroup - 1) / kGroup;
  const int kv_head = blockIdx.y / tiles, tile = blockIdx.y % tiles;
  const int first_head = kv_head * group + tile * kGroup;
  const int count = min(kGroup, group - tile * kGroup);

  const DecodeRange range = range_of(args, kTeams * kAlign);
  const int begin = range.begin + team * kKeys;
  const int32_t* table = args.block_table + blockIdx.x * args.table_stride;
  const int size = args.cache.block_size, shift = __ffs(size) - 1;
  const int64_t offset = kv_head * args.cache.head_stride + lane * kChannels;
  const T* keys = static_cast<const T*>(args.cache.keys) + offset;
  const T* values = static_cast<const T*>(args.cache.values) + offset;
  Keys ring(memory);
  // Keys of a stage are in one block of the cache. Keys after the last one are loaded but not used.
  const auto block_of = [&](int t) { return t < range.end ? table[t >> shift] : 0; };
  const auto ask = [&](int stage, int t, int block) {
    const int64_t at = block * args.cache.block_stride + (t & (size - 1)) * args.cache.row_stride;
    ring.ask(stage, keys + at, values + at, args.cache.row_stride);
  };
  start_next_kernel();
  if constexpr (!kAppliesRope) wait_for_last_kernel();
  // Keys before the row's own are in the cache already. Its own key is only in the last stage of a
  // team.
  const int length = args.lengths[blockIdx.x];
  const auto is_there = [&](int t) { return !kAppliesRope || t + kKeys < length; };
  int blocks[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) blocks[i] = block_of(begin + i * kStageKeys);
  int next_block = block_of(begin + kAhead * kStageKeys);
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const int t = begin + i * kStageKeys;
    if (t < range.end && is_there(t)) ask(i, t, blocks[i]);
    cp_async_commit();
  }

  float query[kGroup][kChannels] = {};
  if constexpr (kAppliesRope) {
    __shared__ __align__(16) float queries[kGroup][kDim], shared[kThreads / kWarp][kDim];
    RopeHeads heads_of_block{args.heads, first_head, count, kv_head, -1};
    if (range.begin < range.end && range.end == length)
      heads_of_block.offset = table[(length - 1) >> shift] * args.cache.block_stride +
                              ((length - 1) & (size - 1)) * args.cache.row_stride +
                              kv_head * args.cache.head_stride;
    const auto added = ask_added<T, kDim, kGroup>(heads_of_block, lora_delta);
    wait_for_last_kernel();
    apply_rope_to_row<T>(rope, args, heads_of_block, lora_delta, added, queries, shared);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int t = begin + i * kStageKeys;
      if (t >= range.end || is_there(t)) continue;
      ask(i, t, blocks[i]);
      cp_async_commit();
      cp_async_wait<0>();
    }
#pragma unroll
    for (int g = 0; g < kGroup; ++g)
#pragma unroll
      for (int c = 0; c < kChannels; ++c)
        query[g][c] = g < count ? queries[g][lane * kChannels + c] : 0.0F;
  } else {
    const T* q = static_cast<const T*>(args.q) + lane * kChannels +
                 (static_cast<int64_t>(blockIdx.x) * num_heads + first_head) * kDim;
#pragma unroll
    for (int g = 0; g < kGroup; ++g)
      if (g < count) load(q + g * kDim, query[g]);
  }
#pragma unroll
  for (int g = 0; g < kGroup; ++g)
#pragma unroll
    for (int c = 0; c < kChannels; ++c) query[g][c] *= args.scale * kLog2E;

  // Lanes of other teams may be in another stage.
  const unsigned team_mask = kLanes == kWarp ? kAllLanes
                                             : ((1U << (kLanes % kWarp)) - 1U)
                                                   << (threadIdx.x % kWarp / kLanes * kLanes);
  float sum[kGroup][kChannels] = {};
  float largest[kGroup], total[kGroup] = {};
#pragma unroll
  for (int g = 0; g < kGroup; ++g) largest[g] = kLowest;
  int stage = 0;  // index in the ring
  for (int t = begin; t < range.end; t += kStageKeys) {
    cp_async_wait<kAhead - 1>();
    float scores[kKeys][kGroup] = {};
#pragma unroll
    for (int k = 0; k < kKeys; ++k) {
      const Pack<T, kChannels> key = ring.key(stage, k);
#pragma unroll
      for (int g = 0; g < kGroup; ++g)
#pragma unroll
        for (int c = 0; c < kChannels; ++c) scores[k][g] += to_float(key.at[c]) * query[g][c];
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2)
#pragma unroll
      for (int k = 0; k < kKeys; ++k)
#pragma unroll
        for (int g = 0; g < kGroup; ++g)
          scores[k][g] += __shfl_xor_sync(team_mask, scores[k][g], step);
    bool is_seen[kKeys];
#pragma unroll
    for (int k = 0; k < kKeys; ++k) is_seen[k] = t + k < range.end && t + k >= range.lowest;
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      float most = largest[g];
#pragma unroll
      for (int k = 0; k < kKeys; ++k)
        if (is_seen[k]) most = fmaxf(most, scores[k][g]);
      const float shrink = exp2f(largest[g] - most);
      largest[g] = most;
      total[g] *= shrink;
#pragma unroll
      for (int c = 0; c < kChannels; ++c) sum[g][c] *= shrink;
#pragma unroll
      for (int k = 0; k < kKeys; ++k) {
        scores[k][g] = is_seen[k] ? exp2f(scores[k][g] - most) : 0.0F;
        total[g] += scores[k][g];
      }
    }
#pragma unroll
    for (int k = 0; k < kKeys; ++k)
      if (is_seen[k]) {
        const Pack<T, kChannels> value = ring.value(stage, k);
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          const float v = to_float(value.at[c]);
#pragma unroll
          for (int g = 0; g < kGroup; ++g) sum[g][c] += scores[k][g] * v;
        }
      }
    const int after = t + kAhead * kStageKeys;
    if (after < range.end) {
      ask(stage, after, next_block);
      next_block = block_of(after + kStageKeys);
    }
    cp_async_commit();
    stage = Keys::Stages::next(stage);
  }

  __syncthreads();  // the ring is read
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) sums[team][g][lane * kChannels + c] = sum[g][c];
    if (lane == 0) stats[team][g] = {largest[g], total[g]};
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count * kDim; i += kThreads) {
    const int g = i / kDim, channel = i % kDim;
    PartStats all{kLowest, 0};
    float out = 0;
    for (int n = 0; n < kTeams; ++n) all.largest = fmaxf(all.largest, stats[n][g].largest);
    for (int n = 0; n < kTeams; ++n) {
      const float shrink = exp2f(stats[n][g].largest - all.largest);
      all.total += stats[n][g].total * shrink;
      out += sums[n][g][channel] * shrink;
    }
    const int64_t head = first_head + g;
    if (gridDim.z == 1) {
      finish<T>(args, head, channel, out, all);
      continue;
    }
    const int64_t part =
        (static_cast<int64_t>(blockIdx.x) * num_heads + head) * gridDim.z + blockIdx.z;
    float* to = args.workspace + part * (kDim + 2);
    to[channel] = out;
    if (channel == 0) to[kDim] = all.largest;
    if (channel == 0) to[kDim + 1] = all.total;
  }
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
    launch(decode_kernel<T, kDim, kGroup, false, NoLoraDelta>, grid, kThreads, 0, stream, args,
           PagedRotaryArgs{}, NoLoraDelta{});
  else if (rope->qkv.lora_delta == nullptr)
    launch(decode_kernel<T, kDim, kGroup, true, NoLoraDelta>, grid, kThreads, 0, stream, args,
           *rope, NoLoraDelta{});
  else
    launch(decode_kernel<T, kDim, kGroup, true, LoraDelta>, grid, kThreads, 0, stream, args, *rope,
           *rope->qkv.lora_delta);
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
