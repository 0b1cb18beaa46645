// Attention of one query a row over a paged cache. A block has a row, up to kGroup query heads of
// one key-value head, and a part of the context. A team of head_dim / 8 lanes takes a few keys in a
// row (they lie in one block of the cache), each lane 8 channels; teams, and then the parts of the
// context, are put together in order. Where it turns the row first, each warp has a head of it, and
// the teams' first keys are on their way meanwhile.
#include <algorithm>

#include "kernels/ops/cuda/turn.cuh"

namespace primerl::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kChannels = 8;  // of a lane
constexpr float kLowest = -1e30F;
constexpr float kLog2E = 1.44269504088896341F;
constexpr int64_t kSplitKeysMin = 256;

/// What a part of the context gives to one head: out = sum / total, weights e^(z - largest).
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

/// Writes one channel of a head, once its parts are put together.
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

/// 16 bytes that nobody reads again soon.
__device__ __forceinline__ uint4 load_once(const void* from) {
  uint4 to;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
               : "l"(from)
               : "memory");
  return to;
}
template <class T>
__device__ __forceinline__ Pack<T, kChannels> load_channels(const T* from) {
  constexpr int kVectors = sizeof(T) * kChannels / sizeof(uint4);
  Pack<T, kChannels> to;
#pragma unroll
  for (int i = 0; i < kVectors; ++i)
    reinterpret_cast<uint4*>(&to)[i] = load_once(from + i * kVector<T>);
  return to;
}

/// Turns what the block needs of its row: queries, rounded as rotary() writes them, to `queries`,
/// key and value to `place` of the cache; below 0: neither.
template <class T, int kDim, int kGroup>
__device__ __forceinline__ void turn_row(const PagedRotaryArgs& turn,
                                         const DecodeAttentionArgs& args, int first_head, int count,
                                         int kv_head, int64_t place, float (&queries)[kGroup][kDim],
                                         float (*shared)[kDim]) {
  constexpr int kSlots = kDim / kWarp;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const auto [num_heads, num_kv_heads, d] = args.heads;
  const int position = max(args.lengths[blockIdx.x] - 1, 0);
  const T* row = static_cast<const T*>(turn.qkv) +
                 static_cast<int64_t>(blockIdx.x) * (num_heads + 2 * num_kv_heads) * kDim;
  for (int task = warp; task < kGroup + 2; task += kThreads / kWarp) {
    const bool is_query = task < kGroup, is_value = task == kGroup + 1;
    if (is_query ? task >= count : place < 0) continue;
    const int head =
        is_query ? first_head + task : num_heads + kv_head + (is_value ? num_kv_heads : 0);
    float x[kSlots];
    load_head(row + head * kDim, kDim, lane, x);
    if (!is_value)
      norm_and_turn<T>(turn, is_query ? turn.q_weight : turn.k_weight, position, lane, x,
                       shared[warp]);
    if (is_query) {
#pragma unroll
      for (int i = 0; i < kSlots; ++i) queries[task][lane + i * kWarp] = rounded<T>(x[i]);
    } else {
      store_head(static_cast<T*>(is_value ? args.cache.values : args.cache.keys) + place, kDim,
                 lane, x);
    }
  }
}

/// Blocks of a processor, whose keys in flight hide the latency of memory: these need 96 registers
/// a thread, which five leave; those that turn a row while keys are on their way need more.
template <int kDim, int kGroup, bool kTurns>
constexpr int kBlocksMin = kDim > 128 || kGroup > 2 ? 1 : kTurns ? 4 : 5;

template <class T, int kDim, int kGroup, bool kTurns>
__global__ void __launch_bounds__(kThreads, (kBlocksMin<kDim, kGroup, kTurns>))
    decode_kernel(DecodeAttentionArgs args, PagedRotaryArgs turn) {
  constexpr int kLanes = kDim / kChannels, kTeams = kThreads / kLanes;
  constexpr int kKeys = kGroup >= 8 ? 2 : kAlign;  // of a team and turn
  constexpr int kTurn = kTeams * kKeys;
  __shared__ float sums[kTeams][kGroup][kDim];
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
  // The table is asked a turn ahead. Keys of a turn lie in one block of the cache: those beyond the
  // last are read and not used.
  int block = begin < range.end ? table[begin >> shift] : 0;
  Pack<T, kChannels> key[kKeys], value[kKeys];
  const auto fetch = [&](int t) {
    const int64_t at = block * args.cache.block_stride + (t & (size - 1)) * args.cache.row_stride;
#pragma unroll
    for (int k = 0; k < kKeys; ++k) key[k] = load_channels(keys + at + k * args.cache.row_stride);
#pragma unroll
    for (int k = 0; k < kKeys; ++k)
      value[k] = load_channels(values + at + k * args.cache.row_stride);
    if (t + kTurn < range.end) block = table[(t + kTurn) >> shift];
  };

  float query[kGroup][kChannels] = {};
  // Keys before the row's own are there already.
  const int length = args.lengths[blockIdx.x];
  const bool is_early = kTurns && begin + kKeys < length && begin < range.end;
  if constexpr (kTurns) {
    __shared__ float queries[kGroup][kDim], shared[kThreads / kWarp][kDim];
    if (is_early) fetch(begin);
    int64_t place = -1;
    if (range.begin < range.end && range.end == length)
      place = table[(length - 1) >> shift] * args.cache.block_stride +
              ((length - 1) & (size - 1)) * args.cache.row_stride +
              kv_head * args.cache.head_stride;
    turn_row<T>(turn, args, first_head, count, kv_head, place, queries, shared);
    __syncthreads();
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

  // Lanes of other teams may be at another turn.
  const unsigned mates = kLanes == kWarp ? kAllLanes
                                         : ((1U << (kLanes % kWarp)) - 1U)
                                               << (threadIdx.x % kWarp / kLanes * kLanes);
  float sum[kGroup][kChannels] = {};
  float largest[kGroup], total[kGroup] = {};
#pragma unroll
  for (int g = 0; g < kGroup; ++g) largest[g] = kLowest;
  for (int t = begin; t < range.end; t += kTurn) {
    if (!is_early || t != begin) fetch(t);
    float scores[kKeys][kGroup] = {};
#pragma unroll
    for (int k = 0; k < kKeys; ++k)
#pragma unroll
      for (int g = 0; g < kGroup; ++g)
#pragma unroll
        for (int c = 0; c < kChannels; ++c) scores[k][g] += to_float(key[k].at[c]) * query[g][c];
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2)
#pragma unroll
      for (int k = 0; k < kKeys; ++k)
#pragma unroll
        for (int g = 0; g < kGroup; ++g) scores[k][g] += __shfl_xor_sync(mates, scores[k][g], step);
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
      if (is_seen[k])
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          const float v = to_float(value[k].at[c]);
#pragma unroll
          for (int g = 0; g < kGroup; ++g) sum[g][c] += scores[k][g] * v;
        }
  }

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

/// A block a row and a head, a thread a channel.
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
void start(const DecodeAttentionArgs& args, const PagedRotaryArgs* turn, Stream stream) {
  const int group = args.heads.num_heads / args.heads.num_kv_heads;
  const int tiles = (group + kGroup - 1) / kGroup;
  const dim3 grid(static_cast<unsigned>(args.rows), args.heads.num_kv_heads * tiles,
                  args.num_splits);
  if (turn != nullptr)
    decode_kernel<T, kDim, kGroup, true><<<grid, kThreads, 0, stream>>>(args, *turn);
  else
    decode_kernel<T, kDim, kGroup, false><<<grid, kThreads, 0, stream>>>(args, {});
  if (args.num_splits == 1) return;
  const dim3 heads(static_cast<unsigned>(args.rows), args.heads.num_heads);
  combine_kernel<T><<<heads, kDim, 0, stream>>>(args);
}

template <class T, int kDim>
void with_group(const DecodeAttentionArgs& args, const PagedRotaryArgs* turn, Stream stream) {
  const int group = args.heads.num_heads / args.heads.num_kv_heads;
  if (group == 1)
    start<T, kDim, 1>(args, turn, stream);
  else if (group == 2)
    start<T, kDim, 2>(args, turn, stream);
  else if (group <= 4)
    start<T, kDim, 4>(args, turn, stream);
  else
    start<T, kDim, 8>(args, turn, stream);
}

template <class T>
Outcome with_dim(const DecodeAttentionArgs& args, const PagedRotaryArgs* turn, Stream stream) {
  if (args.heads.head_dim == 64)
    with_group<T, 64>(args, turn, stream);
  else if (args.heads.head_dim == 128)
    with_group<T, 128>(args, turn, stream);
  else
    with_group<T, 256>(args, turn, stream);
  return launched();
}

Outcome with_type(const DecodeAttentionArgs& args, const PagedRotaryArgs* turn, Stream stream) {
  return args.type == Type::kFloat32 ? with_dim<float>(args, turn, stream)
                                     : with_dim<Bf16>(args, turn, stream);
}

const char* fault_of(const DecodeAttentionArgs& args) {
  const auto [num_heads, num_kv_heads, d] = args.heads;
  if (args.rows < 0 || args.rows > kRowsMax) return kTooManyRows;
  if (d != 64 && d != 128 && d != 256) return "head_dim of decode attention must be 64, 128 or 256";
  if (num_heads < 1 || num_kv_heads < 1 || num_heads % num_kv_heads != 0)
    return "num_kv_heads must divide num_heads";
  if (num_heads > 65535) return "num_heads must be at most 65535";
  const PagedCache& cache = args.cache;
  if (cache.block_size < 16 || (cache.block_size & (cache.block_size - 1)) != 0)
    return "block_size of decode attention must be a power of two, 16 or more";
  const bool are_multiples = cache.block_stride % kChannels == 0 &&
                             cache.row_stride % kChannels == 0 &&
                             cache.head_stride % kChannels == 0;
  if (!are_multiples || !are_aligned(static_cast<const std::byte*>(cache.keys),
                                     static_cast<const std::byte*>(cache.values)))
    return "the cache must be aligned to 16 bytes, its strides multiples of 8 elements";
  if (!are_aligned(static_cast<const std::byte*>(args.q))) return "q must be aligned to 16 bytes";
  if (args.num_splits < 1 || args.num_splits > kSplitsMax) return "num_splits must be from 1 to 64";
  if (args.num_splits > 1 && args.workspace == nullptr)
    return "more than one split needs a workspace";
  return nullptr;
}

}  // namespace

Outcome decode_attention(const DecodeAttentionArgs& args, Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  return with_type(args, nullptr, stream);
}

Outcome turned_attention(const PagedRotaryArgs& turn, const DecodeAttentionArgs& args,
                         Stream stream) {
  if (args.rows == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const bool are_alike = turn.rows == args.rows && turn.type == args.type &&
                         turn.heads.num_heads == args.heads.num_heads &&
                         turn.heads.num_kv_heads == args.heads.num_kv_heads &&
                         turn.heads.head_dim == args.heads.head_dim;
  if (!are_alike) return {"rows, heads and type of both must be equal"};
  if (turn.rotary_dim < 0 || turn.rotary_dim > turn.heads.head_dim || turn.rotary_dim % 2 != 0)
    return {kOddRotaryDim};
  return with_type(args, &turn, stream);
}

int64_t decode_workspace(int64_t rows, const HeadShape& heads, int32_t num_splits) {
  return num_splits == 1 ? 0 : rows * heads.num_heads * num_splits * (heads.head_dim + 2);
}

int32_t decode_splits(int64_t rows, const HeadShape& heads, int64_t length_max,
                      int32_t num_processors) {
  // Four blocks fit a processor.
  const int64_t wanted =
      divide_up(4 * num_processors, std::max<int64_t>(1, rows) * std::max(1, heads.num_kv_heads));
  const int64_t useful = std::max<int64_t>(1, length_max / kSplitKeysMin);
  return static_cast<int32_t>(std::min({wanted, useful, int64_t{kSplitsMax}}));
}

}  // namespace primerl::cuda
