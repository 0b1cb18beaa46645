/// What adapters add to a row, made by who reads the row: scaling * B u of columns of one part, by
/// a warp or by a block. u = A x lies in the workspace of AddAdaptersArgs: fp32, for each slice of
/// the terms, part and 16 ranks a matrix of rows.
#pragma once

#include <type_traits>

#include "kernels/ops/cuda/launch.cuh"

namespace primerl::cuda {

constexpr int kShrinkRanks = 16;      // of a block of the kernel that makes u
constexpr int kShrinkTerms = 1024;    // likewise
constexpr int kShrinkSlicesAtOnce = 3;  // of the terms, that are read at once

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

/// In place of an AdapterAddend where nothing is added.
struct NoAddend {};
template <class Addend>
constexpr bool kIsAdapted = std::is_same_v<Addend, AdapterAddend>;

/// Threads that make what is added to a row together.
template <bool kIsWarp>
struct Team {
  __device__ static __forceinline__ int size() {
    return kIsWarp ? kWarp : static_cast<int>(blockDim.x);
  }
  __device__ static __forceinline__ int thread() {
    return static_cast<int>(kIsWarp ? threadIdx.x % kWarp : threadIdx.x);
  }
  __device__ static __forceinline__ void sync() {
    if constexpr (kIsWarp)
      __syncwarp();
    else
      __syncthreads();
  }
};

/// B of `count` columns from `column` of a product on, for the adapter of a row or of a tile: 16
/// bytes of it are a piece, and the first kAhead pieces of a thread are asked for before u is
/// there. Where the pieces of a column are no power of two a thread has whole columns.
template <class T, class Threads, int kAhead>
class ExpandedColumns {
 public:
  static constexpr int kPieceRanks = kVector<T>;

  /// `Adapter` has slot, rank and targets.
  template <class Adapter>
  __device__ __forceinline__ ExpandedColumns(const AddAdaptersArgs& args, const Adapter& adapter,
                                             int64_t column, int count)
      : rank_(adapter.rank), columns_(count) {
    for (int i = 0; i < args.num_parts; ++i) {
      const AdapterPart& part = args.parts[i];
      const bool is_its = column >= part.column && column < part.column + part.columns;
      if (!is_its || adapter.rank == 0 || (adapter.targets & part.target) == 0) continue;
      part_ = i;
      b_ = static_cast<const T*>(args.slots) + adapter.slot * args.slot_stride +
           (part.b + column - part.column) * adapter.rank;
    }
    pieces_ = rank_ / kPieceRanks;
    has_pieces_ = rank_ % kPieceRanks == 0 && (pieces_ & (pieces_ - 1)) == 0;
    if (!adds() || !has_pieces_) return;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int piece = i * Threads::size() + Threads::thread();
      if (piece < columns_ * pieces_) ahead_[i] = piece_at(piece);
    }
  }
  /// Whether there is anything to add; the same for all threads of a team.
  __device__ __forceinline__ bool adds() const { return part_ >= 0; }
  __device__ __forceinline__ int part() const { return part_; }

  /// out[i] = B u of column i; `u` [rank] and `out` are in shared memory.
  __device__ __forceinline__ void multiply(const float* u, float* out) const {
    if (!has_pieces_) return multiply_columns(u, out);
    float of_piece[kPieceRanks];
    const int place = Threads::thread() & (pieces_ - 1), shift = __ffs(pieces_) - 1;
#pragma unroll
    for (int j = 0; j < kPieceRanks; ++j) of_piece[j] = u[place * kPieceRanks + j];
    float sums[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) sums[i] = dot(ahead_[i], of_piece);
    put(0, sums, shift, out);
    for (int first = kAhead * Threads::size(); first < columns_ * pieces_;
         first += Threads::size()) {
      const int piece = first + Threads::thread();
      float sum[1] = {piece < columns_ * pieces_ ? dot(piece_at(piece), of_piece) : 0.0F};
      put(first, sum, shift, out);
    }
  }

 private:
  __device__ __forceinline__ uint4 piece_at(int piece) const {
    return *reinterpret_cast<const uint4*>(b_ + piece * kPieceRanks);
  }
  static __device__ __forceinline__ float dot(const uint4& b, const float (&u)[kPieceRanks]) {
    const unsigned words[4] = {b.x, b.y, b.z, b.w};
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if constexpr (sizeof(T) == sizeof(float)) {
        sum += __uint_as_float(words[j]) * u[j];
      } else {  // the upper half of an fp32 is a bf16
        sum += __uint_as_float(words[j] << 16) * u[2 * j];
        sum += __uint_as_float(words[j] & 0xffff0000U) * u[2 * j + 1];
      }
    return sum;
  }
  /// What all threads of a team have of pieces from `first` on: those of a column are neighbours,
  /// and add up in pairs.
  template <int kCount>
  __device__ __forceinline__ void put(int first, float (&sums)[kCount], int shift,
                                      float* out) const {
    for (int step = 1; step < pieces_; step *= 2)
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[i] += __shfl_xor_sync(kAllLanes, sums[i], step);
    if ((Threads::thread() & (pieces_ - 1)) != 0) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int piece = first + i * Threads::size() + Threads::thread();
      if (piece < columns_ * pieces_) out[piece >> shift] = sums[i];
    }
  }
  __device__ __forceinline__ void multiply_columns(const float* u, float* out) const {
    for (int column = Threads::thread(); column < columns_; column += Threads::size()) {
      float sum = 0;
      for (int rank = 0; rank < rank_; ++rank) sum += to_float(b_[column * rank_ + rank]) * u[rank];
      out[column] = sum;
    }
  }

  const T* b_ = nullptr;
  int rank_, columns_, pieces_ = 0;  // of a column
  int part_ = -1;
  bool has_pieces_ = false;
  uint4 ahead_[kAhead] = {};  // as words: numbers of two bytes would take a register each
};

/// scaling * u of a row, which a team asks for and puts into shared memory later; slices in order.
template <class Threads>
class ShrunkRow {
 public:
  __device__ __forceinline__ ShrunkRow(const AdapterAddend& addend, const AdapterRow& adapter,
                                       int part, int64_t row)
      : slices_(count_of(addend.of.terms, kShrinkTerms)),
        stride_(u_of(addend.of, addend.num_rows, 1, 0, 0, 0) - addend.of.workspace) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int rank = i * Threads::size() + Threads::thread();
      if (part < 0 || rank >= adapter.rank) continue;
      from_[i] = u_of(addend.of, addend.num_rows, 0, part, rank / kShrinkRanks, row) +
                 rank % kShrinkRanks;
#pragma unroll
      for (int slice = 0; slice < kShrinkSlicesAtOnce; ++slice)
        if (slice < slices_) first_[i][slice] = from_[i][slice * stride_];
    }
  }
  __device__ __forceinline__ void put(float scaling, float* u) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (from_[i] == nullptr) continue;
      float sum = 0;
#pragma unroll
      for (int slice = 0; slice < kShrinkSlicesAtOnce; ++slice) sum += first_[i][slice];
      for (int slice = kShrinkSlicesAtOnce; slice < slices_; ++slice)
        sum += from_[i][slice * stride_];
      u[i * Threads::size() + Threads::thread()] = scaling * sum;
    }
  }

 private:
  static constexpr int kCount = kAdapterRowsRankMax / kWarp;  // of a thread of the smallest team

  const int slices_;
  const int64_t stride_;  // of slices
  const float* from_[kCount] = {};
  float first_[kCount][kShrinkSlicesAtOnce] = {};
};

// Of tiles of rows, by tensor cores.

constexpr int kGroupRows = 8;    // of a product; a tile has some such groups
constexpr int kLaneColumns = 8;  // of a warp's, two of each product
constexpr int kWarpColumns = kLaneColumns * kGroupRows;

/// c[16, 8] += a[16, 16 terms] * x[8, 16 terms]'. Which term is which does not matter, as long as
/// both sides agree: so a lane reads its terms of a row at once.
__device__ __forceinline__ void multiply(float (&c)[4], unsigned a0, unsigned a1, unsigned a2,
                                         unsigned a3, unsigned x0, unsigned x1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(x0), "r"(x1));
}

/// Two numbers as bf16; they become what that leaves of them.
__device__ __forceinline__ unsigned take_half(float& a, float& b) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
  a -= __low2float(both);
  b -= __high2float(both);
  return *reinterpret_cast<const unsigned*>(&both);
}

/// Four ranks of some of a lane's columns, from that of the first one and of rank `rank` on.
__device__ __forceinline__ void load_columns(const Bf16* from, int rank, int all_ranks, int count,
                                             uint2 (&b)[kLaneColumns]) {
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i)
    b[i] = rank < all_ranks && i < count
               ? *reinterpret_cast<const uint2*>(from + i * all_ranks + rank)
               : uint2{};
}

/// Sums of a lane: eight columns that follow each other, of rows 2 * (lane % 4) and the next one.
/// Columns are the rows of products, named such that a lane has those.
struct ColumnSums {
  float c[kLaneColumns / 2][4] = {};

  /// += b of four ranks for each column, times u of them, which is fp32 in two halves.
  __device__ __forceinline__ void add(const uint2 (&b)[kLaneColumns], float4 u) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned u0 = take_half(u.x, u.y), u1 = take_half(u.z, u.w);
#pragma unroll
      for (int i = 0; i < kLaneColumns / 2; ++i)
        multiply(c[i], b[2 * i].x, b[2 * i + 1].x, b[2 * i].y, b[2 * i + 1].y, u0, u1);
    }
  }
  __device__ __forceinline__ void of_row(int row, float (&values)[kLaneColumns]) const {
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) values[i] = c[i / 2][i % 2 * 2 + row];
  }
};

/// scaling * u of four ranks of a row, of all slices in order, `stride` apart.
__device__ __forceinline__ float4 sum_of(const float* u, int slices, int64_t stride,
                                         float scaling) {
  float4 sum = {};
  for (int first = 0; first < slices; first += kShrinkSlicesAtOnce) {
    float4 more[kShrinkSlicesAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kShrinkSlicesAtOnce; ++i)
      if (first + i < slices)
        more[i] = *reinterpret_cast<const float4*>(u + (first + i) * stride);
#pragma unroll
    for (int i = 0; i < kShrinkSlicesAtOnce; ++i)
      sum = {sum.x + more[i].x, sum.y + more[i].y, sum.z + more[i].z, sum.w + more[i].w};
  }
  return {scaling * sum.x, scaling * sum.y, scaling * sum.z, scaling * sum.w};
}

}  // namespace primerl::cuda
