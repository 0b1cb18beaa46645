/// GEMMs on tensor cores by one warp: bf16 operands, fp32 sums. Two forms: operands that a warp
/// loads from shared memory (MmaTile), and operands in the registers of the lanes (LaneColumns).
#pragma once

#include "kernels/cuda/ops/device.cuh"

namespace primerl::cuda {

constexpr int kMmaRows = 16;  // of an instruction
constexpr int kMmaColumns = 8;
constexpr int kMmaTerms = 16;

/// sums[16, 8] += a[16, 16 terms] * b[8, 16 terms]'. Lane l has the rows l / 4 and l / 4 + 8, and
/// the columns 2 * (l % 4) and the next one. If both operands permute the terms alike, the order of
/// terms does not matter: so a lane may load its terms of a row with one load.
__device__ __forceinline__ void mma(float (&sums)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// Loads four 8 x 8 matrices from shared memory. Each lane gives the address of a row, a multiple
/// of 16 bytes. kIsTransposed: loads the transposed matrices.
template <bool kIsTransposed>
__device__ __forceinline__ void load_matrices(const void* from, uint32_t (&to)[4]) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(from));
  if constexpr (kIsTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

/// Sums of a warp: 16 * kRowTiles rows, 16 * kColumnTiles columns.
template <int kRowTiles, int kColumnTiles>
class MmaTile {
 public:
  /// sums += a * b' over 16 terms. `a_at(i)` and `b_at(j)` give the lane's address in 16 rows of a
  /// and 16 columns of b: a lane gives the element (row_of_a(), term_of_a()) or (column_of_b(),
  /// term_of_b()). kIsTransposed: b is stored term by term.
  template <bool kIsTransposed, class OfA, class OfB>
  __device__ __forceinline__ void add(const OfA& a_at, const OfB& b_at) {
    uint32_t a[kRowTiles][4], b[kColumnTiles][4];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) load_matrices<false>(a_at(i), a[i]);
#pragma unroll
    for (int j = 0; j < kColumnTiles; ++j) load_matrices<kIsTransposed>(b_at(j), b[j]);
#pragma unroll
    for (int j = 0; j < 2 * kColumnTiles; ++j)
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
        mma(sums_[i][j], a[i][0], a[i][1], a[i][2], a[i][3], b[j / 2][j % 2 * 2],
            b[j / 2][j % 2 * 2 + 1]);
  }
  /// Writes pairs of adjacent sums to `to(row, column)`.
  template <class To>
  __device__ __forceinline__ void write(const To& to) const {
    const int lane = threadIdx.x % kWarp, row = lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int j = 0; j < 2 * kColumnTiles; ++j)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const float pair[2] = {sums_[i][j][2 * k], sums_[i][j][2 * k + 1]};
          store(to(row + i * kMmaRows + k * 8, column + j * kMmaColumns), pair);
        }
  }

  static __device__ __forceinline__ int row_of_a() { return threadIdx.x % 16; }
  static __device__ __forceinline__ int term_of_a() { return threadIdx.x % kWarp / 16 * 8; }
  template <bool kIsTransposed>
  static __device__ __forceinline__ int column_of_b() {
    const int column = threadIdx.x % kWarp / 16 * 8;
    return kIsTransposed ? column : column + threadIdx.x % 8;
  }
  template <bool kIsTransposed>
  static __device__ __forceinline__ int term_of_b() {
    return kIsTransposed ? threadIdx.x % 16 : threadIdx.x / 8 % 2 * 8;
  }

 private:
  float sums_[kRowTiles][2 * kColumnTiles][4] = {};
};

/// Rounds two numbers to bf16 and leaves the rounding errors in `a` and `b`.
__device__ __forceinline__ uint32_t round_to_bf16(float& a, float& b) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
  a -= __low2float(both);
  b -= __high2float(both);
  return *reinterpret_cast<const uint32_t*>(&both);
}

constexpr int kGroupRows = 8;    // of a GEMM; a tile of rows has some such groups
constexpr int kLaneColumns = 8;  // adjacent columns of a lane, two of each GEMM
constexpr int kWarpColumns = kLaneColumns * kGroupRows;

/// Four terms of each of a lane's columns.
using LaneColumns = uint2[kLaneColumns];

/// Loads terms from `term` on, from the lane's first column on; zeros beyond `terms` and `count`.
__device__ __forceinline__ void load_columns(const Bf16* from, int term, int terms, int count,
                                             LaneColumns& b) {
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i)
    b[i] = term < terms && i < count ? *reinterpret_cast<const uint2*>(from + i * terms + term)
                                     : uint2{};
}

/// Sums of a warp: the columns are the rows of the GEMM, permuted so that a lane has eight adjacent
/// columns, of the rows 2 * (lane % 4) and the next one.
struct ColumnSums {
  float c[kLaneColumns / 2][4] = {};

  /// += the dot products of each column and `row`: four terms of a row in bf16.
  __device__ __forceinline__ void add(const LaneColumns& b, uint2 row) {
#pragma unroll
    for (int i = 0; i < kLaneColumns / 2; ++i)
      mma(c[i], b[2 * i].x, b[2 * i + 1].x, b[2 * i].y, b[2 * i + 1].y, row.x, row.y);
  }
  /// The same for a row in fp32, split into two bf16 values.
  __device__ __forceinline__ void add(const LaneColumns& b, float4 row) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const uint32_t low = round_to_bf16(row.x, row.y), high = round_to_bf16(row.z, row.w);
      add(b, uint2{low, high});
    }
  }
  __device__ __forceinline__ void of_row(int row, float (&values)[kLaneColumns]) const {
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) values[i] = c[i / 2][i % 2 * 2 + row];
  }
};

}  // namespace primerl::cuda
