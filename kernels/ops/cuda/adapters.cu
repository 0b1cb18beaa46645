// What adapters add to the product of a linear, for few rows of many adapters: a block a tile of
// rows and a piece of a part's columns. Each block makes the tile's u = scaling * A x itself, since
// a second launch would cost more than reading A again from the L2 cache. In bf16 the tensor cores
// make it: 16 ranks by 8 rows, the terms shared out over the warps, whose sums are added in order.
#include <algorithm>

#include "kernels/ops/cuda/device.cuh"

namespace primerl::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kRows = kAdapterTileRows;
constexpr int kRanks = kAdapterRowsRankMax;
constexpr int kTileRanks = 16;             // of one product of the tensor cores
constexpr int kTermsOfStep = 32;           // of a warp, two products
constexpr int64_t kNarrow = 1024;          // parts of up to so many columns
constexpr int64_t kNarrowPiece = 256;      // have pieces of this many, a column a thread,
constexpr int64_t kWidePiece = 512;        // others of this many
constexpr int64_t kPrefetchedBytes = 128;  // by one instruction

__host__ __device__ constexpr int64_t piece_of(int64_t columns) {
  return columns <= kNarrow ? kNarrowPiece : kWidePiece;
}

/// Columns [begin, end) of a part.
struct Piece {
  AdapterPart part;
  int64_t begin = 0, end = 0;
};

__device__ __forceinline__ Piece piece_at(const AddAdaptersArgs& args, int64_t index) {
  Piece piece;
  for (int i = 0; i < args.num_parts; ++i) {
    piece.part = args.parts[i];
    const int64_t size = piece_of(piece.part.columns);
    const int64_t count = (piece.part.columns + size - 1) / size;
    if (index < count) {
      piece.begin = index * size;
      piece.end = min(piece.begin + size, piece.part.columns);
      break;
    }
    index -= count;
  }
  return piece;
}

/// B is wanted when u is there: it comes from memory meanwhile.
__device__ __forceinline__ void ask_for(const void* from, int64_t bytes) {
  const char* first = static_cast<const char*>(from);
  for (int64_t at = threadIdx.x * kPrefetchedBytes; at < bytes; at += kThreads * kPrefetchedBytes)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(first + at));
}

/// c[16 ranks, 8 rows] += a[16 ranks, 16 terms] * x[8 rows, 16 terms]'
__device__ __forceinline__ void multiply(float (&c)[4], unsigned a0, unsigned a1, unsigned a2,
                                         unsigned a3, unsigned x0, unsigned x1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(x0), "r"(x1));
}

struct Shrunk {
  float u[kRanks][kRows];
};

/// Which term is which of a product's does not matter, as long as both sides agree: so a lane reads
/// 16 bytes of a row at once, and the two halves of them go to two products.
__device__ void shrink(const AdapterTile& tile, int64_t terms, const Bf16* a, const Bf16* x,
                       Shrunk& to) {
  __shared__ float sums[kWarps][kRanks][kRows];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int row = lane / 4, quarter = lane % 4;
  const int num_ranks = (tile.rank + kTileRanks - 1) / kTileRanks * kTileRanks;
  for (int first = 0; first < num_ranks; first += kTileRanks) {
    const int low_rank = first + row, high_rank = low_rank + kTileRanks / 2;
    const Bf16* low = a + low_rank * terms;
    const Bf16* high = a + high_rank * terms;
    float c[4] = {};
#pragma unroll 4
    for (int64_t step = warp * kTermsOfStep; step < terms; step += kWarps * kTermsOfStep) {
      const int64_t at = step + quarter * kVector<Bf16>;
      uint4 of_low = {}, of_high = {}, of_x = {};
      if (at < terms && low_rank < tile.rank) of_low = *reinterpret_cast<const uint4*>(low + at);
      if (at < terms && high_rank < tile.rank) of_high = *reinterpret_cast<const uint4*>(high + at);
      if (at < terms && row < tile.rows)
        of_x = *reinterpret_cast<const uint4*>(x + row * terms + at);
      multiply(c, of_low.x, of_high.x, of_low.y, of_high.y, of_x.x, of_x.y);
      multiply(c, of_low.z, of_high.z, of_low.w, of_high.w, of_x.z, of_x.w);
    }
    *reinterpret_cast<float2*>(&sums[warp][low_rank][2 * quarter]) = {c[0], c[1]};
    *reinterpret_cast<float2*>(&sums[warp][high_rank][2 * quarter]) = {c[2], c[3]};
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_ranks * kRows; i += kThreads) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w][i / kRows][i % kRows];
    to.u[i / kRows][i % kRows] = tile.scaling * sum;
  }
}

/// fp32: a warp a rank.
__device__ void shrink(const AdapterTile& tile, int64_t terms, const float* a, const float* x,
                       Shrunk& to) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int rank = warp; rank < tile.rank; rank += kWarps) {
    float sums[kRows] = {};
    for (int64_t at = lane; at < terms; at += kWarp) {
      const float factor = a[rank * terms + at];
#pragma unroll
      for (int row = 0; row < kRows; ++row)
        if (row < tile.rows) sums[row] += factor * x[row * terms + at];
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float sum = warp_sum(sums[row]);
      if (lane == 0) to.u[rank][row] = tile.scaling * sum;
    }
  }
}

/// sums[row] += b[rank] * u[rank][row] of `kCount` ranks from `rank` on.
template <class T, int kCount>
__device__ __forceinline__ void add_ranks(const T* b, int rank, const Shrunk& from,
                                          float (&sums)[kRows]) {
  float factors[kCount];
  load(b + rank, factors);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float4* u = reinterpret_cast<const float4*>(from.u[rank + i]);
#pragma unroll
    for (int j = 0; j < kRows / 4; ++j) {
      const float4 four = u[j];
      sums[4 * j] += factors[i] * four.x;
      sums[4 * j + 1] += factors[i] * four.y;
      sums[4 * j + 2] += factors[i] * four.z;
      sums[4 * j + 3] += factors[i] * four.w;
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) add_adapters_kernel(AddAdaptersArgs args) {
  __shared__ alignas(16) Shrunk shrunk;
  const AdapterTile tile = args.tiles[blockIdx.y];
  if (tile.rows == 0) return;
  const Piece piece = piece_at(args, blockIdx.x);
  if ((tile.targets & piece.part.target) == 0) return;
  const T* slot = static_cast<const T*>(args.slots) + tile.slot * args.slot_stride;
  const T* b = slot + piece.part.b * tile.rank;
  ask_for(b + piece.begin * tile.rank,
          (piece.end - piece.begin) * tile.rank * static_cast<int64_t>(sizeof(T)));
  shrink(tile, args.terms, slot + piece.part.a * tile.rank,
         static_cast<const T*>(args.x) + tile.first * args.terms, shrunk);
  __syncthreads();
  for (int64_t column = piece.begin + threadIdx.x; column < piece.end; column += kThreads) {
    T* y = static_cast<T*>(args.y) + tile.first * args.columns + piece.part.column + column;
    float before[kRows], sums[kRows] = {};
#pragma unroll
    for (int row = 0; row < kRows; ++row)
      before[row] = row < tile.rows ? to_float(y[row * args.columns]) : 0.0F;
    const T* of_column = b + column * tile.rank;
    if (tile.rank % kVector<T> == 0)
#pragma unroll 2
      for (int rank = 0; rank < tile.rank; rank += kVector<T>)
        add_ranks<T, kVector<T>>(of_column, rank, shrunk, sums);
    else
      for (int rank = 0; rank < tile.rank; ++rank) add_ranks<T, 1>(of_column, rank, shrunk, sums);
#pragma unroll
    for (int row = 0; row < kRows; ++row)
      if (row < tile.rows) y[row * args.columns] = from_float<T>(before[row] + sums[row]);
  }
}

}  // namespace

Outcome add_adapters(const AddAdaptersArgs& args, Stream stream) {
  if (args.num_tiles == 0 || args.num_parts == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  int64_t pieces = 0;
  for (int i = 0; i < args.num_parts; ++i)
    pieces += divide_up(args.parts[i].columns, piece_of(args.parts[i].columns));
  const dim3 blocks(static_cast<unsigned>(pieces), static_cast<unsigned>(args.num_tiles));
  if (args.type == Type::kFloat32)
    add_adapters_kernel<float><<<blocks, kThreads, 0, stream>>>(args);
  else
    add_adapters_kernel<Bf16><<<blocks, kThreads, 0, stream>>>(args);
  return launched();
}

}  // namespace primerl::cuda
