/// What the kernels of adapters share: products of a tile's rows on the tensor cores. u is given to
/// them in two halves, whose sum is u but for 2^-18 of it.
#pragma once

#include "kernels/ops/cuda/launch.cuh"

namespace primerl::cuda {

constexpr int kProductRows = 8;    // of a tile
constexpr int kProductRanks = 16;  // or columns
constexpr int kLaneColumns = 8;    // of a warp's, two of each product
constexpr int kWarpColumns = kLaneColumns * kProductRows;

__host__ __device__ constexpr int count_of(int64_t all, int size) {
  return static_cast<int>((all + size - 1) / size);
}

/// The numbers of a tile's adapter.
template <class T>
__device__ __forceinline__ const T* slot_of(const AddAdaptersArgs& args, const AdapterTile& tile) {
  return static_cast<const T*>(args.slots) + tile.slot * args.slot_stride;
}

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

/// Adds to, or writes, elements of y from `at` on.
template <class T, int kCount>
__device__ __forceinline__ void put(const AddAdaptersArgs& args, int64_t at,
                                    const float (&values)[kCount]) {
  if (args.sums != nullptr) return store(args.sums + at, values);
  T* y = static_cast<T*>(args.y) + at;
  float sums[kCount];
  load(y, sums);
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] += values[i];
  store(y, sums);
}
/// The first `count` of a lane's columns; all at once where `is_whole`.
__device__ __forceinline__ void put_columns(const AddAdaptersArgs& args, int64_t at, bool is_whole,
                                            int count, const float (&values)[kLaneColumns]) {
  if (is_whole) return put<Bf16>(args, at, values);
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i)
    if (i < count) put<Bf16>(args, at + i, {values[i]});
}

/// The sums of a decode step's rows: bf16, tiles of up to eight rows. False: this device has no
/// clusters of blocks.
bool add_in_clusters(const AddAdaptersArgs& args, Stream stream);

}  // namespace primerl::cuda
