/// The keys and values of decode attention: which of them a block and its teams have, and the ring
/// of stages through which they pass.
#pragma once

#include "kernels/cuda/ops/pipeline.cuh"

namespace primerl::cuda {

constexpr int kDecodeThreads = 128;
constexpr int kDecodeChannels = 8;  // of a lane
constexpr int kDecodeRingBytes = 32 << 10;
constexpr int kDecodeAlign = 4;  // keys of a part begin at a multiple of it

struct DecodeRange {
  int begin;   // a multiple of kDecodeAlign
  int end;     // one past the last key of the part
  int lowest;  // the first key that the query sees
};

__device__ __forceinline__ DecodeRange range_of(const DecodeAttentionArgs& args, int step) {
  const int length = args.lengths[blockIdx.x];
  const int lowest = args.window > 0 ? max(0, length - args.window) : 0;
  const int aligned = lowest / kDecodeAlign * kDecodeAlign, splits = gridDim.z;
  const int share = (max(0, length - aligned) + splits - 1) / splits;
  const int chunk = (share + step - 1) / step * step;
  const int64_t begin = aligned + static_cast<int64_t>(blockIdx.z) * chunk;
  return {static_cast<int>(min(begin, static_cast<int64_t>(length))),
          static_cast<int>(min(begin + chunk, static_cast<int64_t>(length))), lowest};
}

/// A ring of stages in shared memory for keys and values of a team. Each thread reads only its own
/// copies, so it waits only for those. Registers instead of shared memory would let fewer warps fit
/// a multiprocessor, with fewer loads in flight.
template <class T, int kKeys>
class KeyRing {
 public:
  static constexpr int kPieces = kDecodeChannels * static_cast<int>(sizeof(T)) / 16;  // of 16 bytes
  static constexpr int kStagePieces = kDecodeThreads * 2 * kKeys * kPieces;
  static constexpr int kStages = kDecodeRingBytes / 16 / kStagePieces;
  using Stages = StageRing<kStages, kStagePieces>;
  static_assert(kStages >= 1 && Stages::kBytes == kDecodeRingBytes);

  __device__ explicit KeyRing(uint4* memory) : own_(memory + threadIdx.x) {}

  /// Copies keys and values of one stage, `stride` elements apart.
  __device__ __forceinline__ void copy(int stage, const T* keys, const T* values,
                                       int64_t stride) const {
#pragma unroll
    for (int k = 0; k < kKeys; ++k) copy_one(stage, k, keys + k * stride);
#pragma unroll
    for (int k = 0; k < kKeys; ++k) copy_one(stage, kKeys + k, values + k * stride);
  }
  __device__ __forceinline__ Pack<T, kDecodeChannels> key(int stage, int k) const {
    return at(stage, k);
  }
  __device__ __forceinline__ Pack<T, kDecodeChannels> value(int stage, int k) const {
    return at(stage, kKeys + k);
  }

 private:
  __device__ __forceinline__ uint4* piece(int stage, int i) const {
    return own_.at(stage) + i * kPieces * kDecodeThreads;
  }
  __device__ __forceinline__ void copy_one(int stage, int i, const T* from) const {
#pragma unroll
    for (int j = 0; j < kPieces; ++j)
      cp_async(piece(stage, i) + j * kDecodeThreads, from + j * kVector<T>);
  }
  __device__ __forceinline__ Pack<T, kDecodeChannels> at(int stage, int i) const {
    Pack<T, kDecodeChannels> pack;
#pragma unroll
    for (int j = 0; j < kPieces; ++j)
      reinterpret_cast<uint4*>(&pack)[j] = piece(stage, i)[j * kDecodeThreads];
    return pack;
  }

  Stages own_;
};

/// How a block works: teams of kLanes lanes, kKeys keys of each team in a stage of the ring.
template <class T, int kHeadDim, int kHeads>
struct DecodeShape {
  using Type = T;
  static constexpr int kDim = kHeadDim, kGroup = kHeads;  // query heads of a block
  static constexpr int kLanes = kDim / kDecodeChannels, kTeams = kDecodeThreads / kLanes;
  static constexpr int kKeys = kGroup >= 8 ? 2 : kDecodeAlign;
  static constexpr int kStageKeys = kTeams * kKeys;
  using Keys = KeyRing<T, kKeys>;
  static constexpr int kAhead = Keys::kStages;

  static __device__ __forceinline__ int team() { return threadIdx.x / kLanes; }
  static __device__ __forceinline__ int lane() { return threadIdx.x % kLanes; }
};

/// The query heads of a block: `count` from `first` on, of one key-value head.
template <class Shape>
struct HeadsOfBlock {
  int kv_head, first, count;

  __device__ __forceinline__ explicit HeadsOfBlock(const HeadShape& heads) {
    constexpr int kGroup = Shape::kGroup;
    const int group = heads.num_heads / heads.num_kv_heads, tiles = (group + kGroup - 1) / kGroup;
    const int tile = blockIdx.y % tiles;
    kv_head = blockIdx.y / tiles;
    first = kv_head * group + tile * kGroup;
    count = min(kGroup, group - tile * kGroup);
  }
};

/// The exponent of a power of two. A function, because nvcc's host compiler reads initializers of
/// members and does not know __ffs().
__device__ __forceinline__ int shift_of(int power_of_two) { return __ffs(power_of_two) - 1; }

/// The keys and values of a team, which pass through the ring. kAppliesRope: the key of the row
/// itself is copied later than the others, by copy_own().
template <class Shape, bool kAppliesRope>
class TeamKeys {
 public:
  using T = typename Shape::Type;

  __device__ __forceinline__ TeamKeys(const DecodeAttentionArgs& args, int kv_head, uint4* memory)
      : range_(range_of(args, Shape::kTeams * kDecodeAlign)),
        begin_(range_.begin + Shape::team() * Shape::kKeys),
        table_(args.block_table + blockIdx.x * args.table_stride),
        cache_(args.cache),
        shift_(shift_of(args.cache.block_size)),
        length_(args.lengths[blockIdx.x]),
        ring_(memory) {
    const int64_t offset = kv_head * cache_.head_stride + Shape::lane() * kDecodeChannels;
    keys_ = static_cast<const T*>(cache_.keys) + offset;
    values_ = static_cast<const T*>(cache_.values) + offset;
  }

  /// Starts to copy the first stages.
  __device__ __forceinline__ void start() {
#pragma unroll
    for (int i = 0; i < Shape::kAhead; ++i) blocks_[i] = block_of(begin_ + i * Shape::kStageKeys);
    next_block_ = block_of(begin_ + Shape::kAhead * Shape::kStageKeys);
#pragma unroll
    for (int i = 0; i < Shape::kAhead; ++i) {
      const int t = begin_ + i * Shape::kStageKeys;
      if (t < range_.end && is_cached(t)) copy(i, t, blocks_[i]);
      cp_async_commit();
    }
  }
  /// Copies the key of the row itself, when it is in the cache. It is only in the last stage of a
  /// team.
  __device__ __forceinline__ void copy_own() {
#pragma unroll
    for (int i = 0; i < Shape::kAhead; ++i) {
      const int t = begin_ + i * Shape::kStageKeys;
      if (t >= range_.end || is_cached(t)) continue;
      copy(i, t, blocks_[i]);
      cp_async_commit();
      cp_async_wait<0>();
    }
  }
  /// Calls use(stage, t) for each stage, whose first key is t, and then fills it again.
  template <class Use>
  __device__ __forceinline__ void for_stages(const Use& use) {
    int stage = 0;  // index in the ring
    for (int t = begin_; t < range_.end; t += Shape::kStageKeys) {
      cp_async_wait<Shape::kAhead - 1>();
      use(stage, t);
      const int after = t + Shape::kAhead * Shape::kStageKeys;
      if (after < range_.end) {
        copy(stage, after, next_block_);
        next_block_ = block_of(after + Shape::kStageKeys);
      }
      cp_async_commit();
      stage = Shape::Keys::Stages::next(stage);
    }
  }

  __device__ __forceinline__ Pack<T, kDecodeChannels> key(int stage, int k) const {
    return ring_.key(stage, k);
  }
  __device__ __forceinline__ Pack<T, kDecodeChannels> value(int stage, int k) const {
    return ring_.value(stage, k);
  }
  __device__ __forceinline__ bool is_seen(int t) const {
    return t < range_.end && t >= range_.lowest;
  }
  /// The offset of the row's own key in the cache; below 0: it belongs to another block.
  __device__ __forceinline__ int64_t offset_of_own(int kv_head) const {
    if (range_.begin >= range_.end || range_.end != length_) return -1;
    return table_[(length_ - 1) >> shift_] * cache_.block_stride +
           ((length_ - 1) & (cache_.block_size - 1)) * cache_.row_stride +
           kv_head * cache_.head_stride;
  }

 private:
  /// Keys before the row's own are in the cache already.
  __device__ __forceinline__ bool is_cached(int t) const {
    return !kAppliesRope || t + Shape::kKeys < length_;
  }
  /// Keys of a stage are in one block of the cache. Keys after the last one are loaded but not
  /// used.
  __device__ __forceinline__ int block_of(int t) const {
    return t < range_.end ? table_[t >> shift_] : 0;
  }
  __device__ __forceinline__ void copy(int stage, int t, int block) const {
    const int64_t at =
        block * cache_.block_stride + (t & (cache_.block_size - 1)) * cache_.row_stride;
    ring_.copy(stage, keys_ + at, values_ + at, cache_.row_stride);
  }

  const DecodeRange range_;
  const int begin_;
  const int32_t* const table_;
  const PagedCache& cache_;
  const int shift_, length_;
  const typename Shape::Keys ring_;
  const T *keys_, *values_;
  int blocks_[Shape::kAhead];
  int next_block_;
};

}  // namespace primerl::cuda
