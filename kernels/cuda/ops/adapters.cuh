/// The LoRA delta scaling * B u, computed by the operation that reads the rows: by a warp for one
/// row, or for the rows of a tile. u = A x is in the workspace of AddAdaptersArgs in fp32: a matrix
/// of rows for each slice of the terms, part and 16 ranks.
#pragma once

#include <type_traits>

#include "kernels/cuda/ops/launch.cuh"
#include "kernels/cuda/ops/mma.cuh"

namespace primerl::cuda {

constexpr int kShrinkRanks = 16;        // of a block of the kernel that makes u
constexpr int kShrinkTerms = 1024;      // likewise: a slice
constexpr int kShrinkSlicesAtOnce = 3;  // that are read at once

__host__ __device__ constexpr int count_of(int64_t all, int size) {
  return static_cast<int>((all + size - 1) / size);
}

/// u of row `row` of the workspace's `num_rows`, of one slice, part and tile of ranks.
__device__ __forceinline__ float* u_of(const AddAdaptersArgs& args, int64_t num_rows, int slice,
                                       int part, int rank_tile, int64_t row) {
  const int rank_tiles = count_of(args.rank_max, kShrinkRanks);
  const int matrix = (slice * args.num_parts + part) * rank_tiles + rank_tile;
  return args.workspace + (matrix * num_rows + row) * kShrinkRanks;
}

/// Stands for a LoraDelta if nothing is added.
struct NoLoraDelta {};
template <class Delta>
constexpr bool kIsAdapted = std::is_same_v<Delta, LoraDelta>;

/// B of columns of a GEMM from `column` on, for the adapter of a row or of a tile.
template <class T>
struct AdaptedColumns {
  const T* b = nullptr;  // of the first column; null: nothing is added
  int part = -1;

  /// `Adapter` has slot, rank and targets.
  template <class Adapter>
  __device__ __forceinline__ AdaptedColumns(const AddAdaptersArgs& args, const Adapter& adapter,
                                            int64_t column) {
    for (int i = 0; i < args.num_parts; ++i) {
      const AdapterPart& of = args.parts[i];
      const bool is_its = column >= of.column && column < of.column + of.columns;
      if (!is_its || adapter.rank == 0 || (adapter.targets & of.target) == 0) continue;
      part = i;
      b = static_cast<const T*>(args.slots) + adapter.slot * args.slot_stride +
          (of.b + column - of.column) * adapter.rank;
    }
  }
  __device__ __forceinline__ bool applies_adapters() const { return part >= 0; }
};

/// scaling * u of a row and a part. A lane loads its part of the first 16 ranks at once, and adds
/// the slices later, in order.
class LoraShrinkRow {
 public:
  __device__ __forceinline__ LoraShrinkRow(const LoraDelta& lora_delta, int part, int64_t row,
                                           float scaling)
      : slices_(count_of(lora_delta.of.terms, kShrinkTerms)),
        stride_(u_of(lora_delta.of, lora_delta.num_rows, 1, 0, 0, 0) - lora_delta.of.workspace),
        tile_stride_(lora_delta.num_rows * kShrinkRanks),
        scaling_(scaling) {
    if (part < 0) return;
    from_ = u_of(lora_delta.of, lora_delta.num_rows, 0, part, 0, row);
    const float* mine = from_ + threadIdx.x % 4 * 4;
#pragma unroll
    for (int slice = 0; slice < kShrinkSlicesAtOnce; ++slice)
      if (slice < slices_) first_[slice] = read(mine + slice * stride_);
  }

  /// The ranks [4 * (lane % 4), + 4) of a tile of 16; zeros without a part.
  __device__ __forceinline__ float4 of_lane(int rank_tile) const {
    float4 sum = {};
    if (from_ == nullptr) return sum;
    const float* mine = from_ + rank_tile * tile_stride_ + threadIdx.x % 4 * 4;
    if (rank_tile == 0)
#pragma unroll
      for (int slice = 0; slice < kShrinkSlicesAtOnce; ++slice) sum = added(sum, first_[slice]);
    for (int slice = rank_tile == 0 ? kShrinkSlicesAtOnce : 0; slice < slices_; ++slice)
      sum = added(sum, read(mine + slice * stride_));
    return {scaling_ * sum.x, scaling_ * sum.y, scaling_ * sum.z, scaling_ * sum.w};
  }
  __device__ __forceinline__ float of_rank(int rank) const {
    const float* one = from_ + rank / kShrinkRanks * tile_stride_ + rank % kShrinkRanks;
    float sum = 0;
    for (int slice = 0; slice < slices_; ++slice) sum += one[slice * stride_];
    return scaling_ * sum;
  }

 private:
  static __device__ __forceinline__ float4 read(const float* from) {
    return *reinterpret_cast<const float4*>(from);
  }
  static __device__ __forceinline__ float4 added(float4 a, float4 b) {
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
  }

  const float* from_ = nullptr;
  const int slices_;
  const int64_t stride_, tile_stride_;  // of slices, and of 16 ranks
  const float scaling_;
  float4 first_[kShrinkSlicesAtOnce] = {};
};

/// B u of one row, by the tensor cores of a warp; the rank is a multiple of 4. Lanes with equal l %
/// 4 below kGroups have a group of columns, eight each: those of vector_of(l). Each group uses two
/// of the eight rows of a GEMM: one for the upper half of u, which is fp32, and one for the lower.
/// The other rows add zeros.
template <int kGroups, bool kAsksAhead>
class RowOfWarp {
 public:
  static __device__ __forceinline__ int vector_of(int lane) {
    return lane / 4 * kGroups + lane % 4;
  }
  /// `b` is the warp's first column of `count`. Loads the first values.
  __device__ __forceinline__ RowOfWarp(const Bf16* b, int rank, int count)
      : b_(b), rank_(rank), count_(count) {
    if constexpr (kAsksAhead)
#pragma unroll
      for (int group = 0; group < kGroups; ++group) load_group(group, 0, ahead_[group]);
  }
  /// To the lane's columns.
  __device__ __forceinline__ void add_to(const LoraShrinkRow& row,
                                         float (&to)[kLaneColumns]) const {
    ColumnSums sums;
    if constexpr (kAsksAhead) {
      const uint2 u = half_of(row.of_lane(0));
#pragma unroll
      for (int group = 0; group < kGroups; ++group) add(ahead_[group], group, u, sums);
    }
    // One group after the other: all at once would need too many registers.
#pragma unroll 1
    for (int first = kAsksAhead ? kShrinkRanks : 0; first < rank_; first += kShrinkRanks) {
      const uint2 u = half_of(row.of_lane(first / kShrinkRanks));
#pragma unroll 1
      for (int group = 0; group < kGroups; ++group) {
        LaneColumns b;
        load_group(group, first, b);
        add(b, group, u, sums);
      }
    }
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i)
      to[i] += sums.c[i / 2][i % 2 * 2] + sums.c[i / 2][i % 2 * 2 + 1];
  }

 private:
  __device__ __forceinline__ void load_group(int group, int first_rank, LaneColumns& b) const {
    const int lane = threadIdx.x % kWarp, column = (lane / 4 * kGroups + group) * kLaneColumns;
    load_columns(b_ + column * rank_, first_rank + lane % 4 * 4, rank_, count_ - column, b);
  }
  /// The upper half of u in even rows of a GEMM, the lower in odd ones.
  static __device__ __forceinline__ uint2 half_of(float4 u) {
    const uint2 upper = {round_to_bf16(u.x, u.y), round_to_bf16(u.z, u.w)};
    if (threadIdx.x / 4 % 2 == 0) return upper;
    return {round_to_bf16(u.x, u.y), round_to_bf16(u.z, u.w)};
  }
  static __device__ __forceinline__ void add(const LaneColumns& b, int group, uint2 u,
                                             ColumnSums& sums) {
    if (static_cast<int>(threadIdx.x % kWarp) / kGroupRows != group) u = {};
    sums.add(b, u);
  }

  const Bf16* b_;
  const int rank_, count_;
  LaneColumns ahead_[kAsksAhead ? kGroups : 1];
};

/// The same for some columns of a lane, `stride` apart, of which there are `count`: for any type
/// and rank, adding the ranks in order.
template <class T, int kCount>
__device__ __forceinline__ void add_columns(const T* b, int rank, int stride, int count,
                                            const LoraShrinkRow& row, float (&to)[kCount]) {
  float sums[kCount] = {};
  for (int i = 0; i < rank; ++i) {
    const float u = row.of_rank(i);
#pragma unroll
    for (int j = 0; j < kCount; ++j)
      if (j < count) sums[j] += to_float(b[j * stride * rank + i]) * u;
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) to[j] += sums[j];
}

}  // namespace primerl::cuda
