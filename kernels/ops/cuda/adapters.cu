// What adapters add to the product of a linear, for few rows of many adapters: a block a tile of
// rows and a piece of a part's columns. Each block makes the tile's u = scaling * A x itself, since
// a second launch would cost more than reading A again from the L2 cache. In bf16 the tensor cores
// make it: 16 ranks by 8 rows, the terms shared out over the warps, whose sums are added in order.
#include <algorithm>

#include "kernels/ops/cuda/device.cuh"

namespace primerl::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * kWarp;
constexpr int kRows = kAdapterTileRows;
constexpr int kGroup = 4;                   // rows that a thread has at once
constexpr int kTileRanks = 16;              // of one product of the tensor cores
constexpr int kTermsOfStep = 32;            // of a warp, two products
constexpr int64_t kNarrow = 1024;           // parts of up to so many columns
constexpr int kNarrowPiece = kThreads / 2;  // have pieces with two threads a column,
constexpr int kWidePiece = kThreads;        // others a thread
constexpr int64_t kTilesMax = 65535;        // of a grid
constexpr int64_t kColumnsMax = 1 << 24;    // times ranks an int
constexpr int kPrefetchedBytes = 128;       // by one instruction

constexpr const char* kWrongTerms =
    "terms, slot_stride and places of parts must be multiples of 8, x and slots at addresses of "
    "16 bytes";

__host__ __device__ constexpr int piece_of(int64_t columns) {
  return columns <= kNarrow ? kNarrowPiece : kWidePiece;
}

/// Columns [begin, end) of a part.
struct Piece {
  int part = 0;  // index
  int begin = 0, end = 0;
  int size = 0;  // of all but the last of its part
};

__device__ __forceinline__ Piece piece_at(const AddAdaptersArgs& args, int index) {
  Piece piece;
  for (;; ++piece.part) {
    const auto columns = static_cast<int>(args.parts[piece.part].columns);
    piece.size = piece_of(columns);
    const int count = (columns + piece.size - 1) / piece.size;
    if (index < count) {
      piece.begin = index * piece.size;
      piece.end = min(piece.begin + piece.size, columns);
      return piece;
    }
    index -= count;
  }
}

/// B is wanted when u is there: it comes from memory meanwhile.
__device__ __forceinline__ void ask_for(const void* from, int bytes) {
  const char* first = static_cast<const char*>(from);
  for (int at = threadIdx.x * kPrefetchedBytes; at < bytes; at += kThreads * kPrefetchedBytes)
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

/// u[rank][row] in shared memory, then the sums of the warps.
using OfRank = float[kRows];

__host__ __device__ constexpr int padded_ranks(int rank) {
  return (rank + kTileRanks - 1) / kTileRanks * kTileRanks;
}

/// Which term is which of a product's does not matter, as long as both sides agree: so a lane reads
/// 16 bytes of a row at once, and the two halves of them go to two products.
__device__ void shrink(const AdapterTile& tile, int terms, const Bf16* a, const Bf16* x,
                       OfRank* u, OfRank* sums) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int row = lane / 4, quarter = lane % 4;
  const int num_ranks = padded_ranks(tile.rank);
  for (int first = 0; first < num_ranks; first += kTileRanks) {
    const int low_rank = first + row, high_rank = low_rank + kTileRanks / 2;
    const Bf16* low = a + low_rank * terms;
    const Bf16* high = a + high_rank * terms;
    float c[4] = {};
#pragma unroll 2
    for (int step = warp * kTermsOfStep; step < terms; step += kWarps * kTermsOfStep) {
      const int at = step + quarter * kVector<Bf16>;
      uint4 of_low = {}, of_high = {}, of_x = {};
      if (at < terms && low_rank < tile.rank) of_low = *reinterpret_cast<const uint4*>(low + at);
      if (at < terms && high_rank < tile.rank) of_high = *reinterpret_cast<const uint4*>(high + at);
      if (at < terms && row < tile.rows)
        of_x = *reinterpret_cast<const uint4*>(x + row * terms + at);
      multiply(c, of_low.x, of_high.x, of_low.y, of_high.y, of_x.x, of_x.y);
      multiply(c, of_low.z, of_high.z, of_low.w, of_high.w, of_x.z, of_x.w);
    }
    OfRank* of_warp = sums + warp * num_ranks;
    *reinterpret_cast<float2*>(&of_warp[low_rank][2 * quarter]) = {c[0], c[1]};
    *reinterpret_cast<float2*>(&of_warp[high_rank][2 * quarter]) = {c[2], c[3]};
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_ranks * kRows; i += kThreads) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w * num_ranks + i / kRows][i % kRows];
    u[i / kRows][i % kRows] = tile.scaling * sum;
  }
}

/// fp32: a warp a rank.
__device__ void shrink(const AdapterTile& tile, int terms, const float* a, const float* x,
                       OfRank* u, OfRank* /*sums*/) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int rank = warp; rank < tile.rank; rank += kWarps) {
    float sums[kRows] = {};
    for (int at = lane; at < terms; at += kWarp) {
      const float factor = a[rank * terms + at];
#pragma unroll
      for (int row = 0; row < kRows; ++row)
        if (row < tile.rows) sums[row] += factor * x[row * terms + at];
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float sum = warp_sum(sums[row]);
      if (lane == 0) u[rank][row] = tile.scaling * sum;
    }
  }
}

/// What a thread may ask for before u is there: B of its column for the first ranks, and what y has
/// in its rows.
template <class T>
struct Early {
  static constexpr int kRanks = kTileRanks;
  static constexpr int kPacks = kRanks / kVector<T>;
  Pack<T, kVector<T>> b[kPacks];
  T y[kRows / kGroup][kGroup];
};

/// sums[row] += b * u[rank][row] of four rows.
__device__ __forceinline__ void add_rank(float b, const float* u, float (&sums)[kGroup]) {
  const float4 four = *reinterpret_cast<const float4*>(u);
  sums[0] += b * four.x;
  sums[1] += b * four.y;
  sums[2] += b * four.z;
  sums[3] += b * four.w;
}

/// Of rows [first, first + 4) of a tile, in the order of the ranks.
template <class T>
__device__ void expand(const AdapterTile& tile, const T* b, const Early<T>& early, const OfRank* u,
                       int first, float (&sums)[kGroup]) {
  if (tile.rank % kVector<T> != 0) {
    for (int rank = 0; rank < tile.rank; ++rank) add_rank(to_float(b[rank]), u[rank] + first, sums);
    return;
  }
#pragma unroll
  for (int i = 0; i < Early<T>::kPacks; ++i)
    if (i * kVector<T> < tile.rank)
#pragma unroll
      for (int j = 0; j < kVector<T>; ++j)
        add_rank(to_float(early.b[i].at[j]), u[i * kVector<T> + j] + first, sums);
#pragma unroll 2
  for (int rank = Early<T>::kRanks; rank < tile.rank; rank += kVector<T>) {
    const auto pack = *reinterpret_cast<const Pack<T, kVector<T>>*>(b + rank);
#pragma unroll
    for (int j = 0; j < kVector<T>; ++j)
      add_rank(to_float(pack.at[j]), u[rank + j] + first, sums);
  }
}

/// A thread has a column; of narrow pieces two threads have one, with four rows each.
template <class T>
__global__ void __launch_bounds__(kThreads, 2) add_adapters_kernel(AddAdaptersArgs args) {
  extern __shared__ OfRank shared[];
  const AdapterTile tile = args.tiles[blockIdx.y];
  if (tile.rows == 0) return;
  const Piece piece = piece_at(args, static_cast<int>(blockIdx.x));
  const AdapterPart& part = args.parts[piece.part];
  if ((tile.targets & part.target) == 0) return;
  const T* slot = static_cast<const T*>(args.slots) + tile.slot * args.slot_stride;
  const T* b = slot + part.b * tile.rank;
  const int column = piece.begin + static_cast<int>(threadIdx.x) % piece.size;
  const int first_group = static_cast<int>(threadIdx.x) / piece.size;
  const int num_groups = kThreads / piece.size;
  const bool has_column = column < piece.end;
  const T* of_column = b + column * tile.rank;
  T* y = static_cast<T*>(args.y) + tile.first * args.columns + part.column + column;
  Early<T> early = {};
  if (has_column) {
#pragma unroll
    for (int i = 0; i < Early<T>::kPacks; ++i)
      if (tile.rank % kVector<T> == 0 && i * kVector<T> < tile.rank)
        early.b[i] = *reinterpret_cast<const Pack<T, kVector<T>>*>(of_column + i * kVector<T>);
#pragma unroll
    for (int group = 0; group < kRows / kGroup; ++group)
#pragma unroll
      for (int j = 0; j < kGroup; ++j)
        if (group % num_groups == first_group && group * kGroup + j < tile.rows)
          early.y[group][j] = y[(group * kGroup + j) * args.columns];
  }
  ask_for(b + piece.begin * tile.rank,
          (piece.end - piece.begin) * tile.rank * static_cast<int>(sizeof(T)));
  OfRank* u = shared;
  shrink(tile, static_cast<int>(args.terms), slot + part.a * tile.rank,
         static_cast<const T*>(args.x) + tile.first * args.terms, u, u + padded_ranks(tile.rank));
  __syncthreads();
  if (!has_column) return;
#pragma unroll
  for (int group = 0; group < kRows / kGroup; ++group) {
    const int first = group * kGroup;
    if (group % num_groups != first_group || first >= tile.rows) continue;
    float sums[kGroup] = {};
    expand(tile, of_column, early, u, first, sums);
#pragma unroll
    for (int j = 0; j < kGroup; ++j)
      if (first + j < tile.rows)
        y[(first + j) * args.columns] = from_float<T>(to_float(early.y[group][j]) + sums[j]);
  }
}

bool are_places_aligned(const AddAdaptersArgs& args) {
  int64_t all = args.terms | args.slot_stride;
  for (int i = 0; i < args.num_parts; ++i) all |= args.parts[i].a | args.parts[i].b;
  return all % 8 == 0 && are_aligned(static_cast<const std::byte*>(args.x),
                                     static_cast<const std::byte*>(args.slots));
}

}  // namespace

Outcome add_adapters(const AddAdaptersArgs& args, Stream stream) {
  if (args.num_tiles == 0 || args.num_parts == 0) return {};
  if (args.num_tiles < 0 || args.num_tiles > kTilesMax) return {"tiles must be at most 65535"};
  if (args.num_parts < 0 || args.num_parts > kAdapterPartsMax)
    return {"parts of a matrix must be at most 3"};
  if (args.rank_max < 1 || args.rank_max > kAdapterRowsRankMax)
    return {"rank_max must be from 1 to 64"};
  if (args.terms < 1 || args.terms > kRowsMax || !are_places_aligned(args)) return {kWrongTerms};
  int64_t pieces = 0;
  for (int i = 0; i < args.num_parts; ++i) {
    const AdapterPart& part = args.parts[i];
    if (part.column < 0 || part.columns < 1 || part.column + part.columns > args.columns)
      return {"columns of parts must be some of the matrix's"};
    pieces += divide_up(part.columns, int64_t{piece_of(part.columns)});
  }
  if (args.columns > kColumnsMax) return {"columns must be at most 2^24"};
  const dim3 blocks(static_cast<unsigned>(pieces), static_cast<unsigned>(args.num_tiles));
  const auto bytes = padded_ranks(args.rank_max) * (1 + kWarps) * sizeof(OfRank);
  if (args.type == Type::kFloat32)
    add_adapters_kernel<float><<<blocks, kThreads, bytes, stream>>>(args);
  else
    add_adapters_kernel<Bf16><<<blocks, kThreads, bytes, stream>>>(args);
  return launched();
}

}  // namespace primerl::cuda
