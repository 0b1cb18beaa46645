// What adapters add to the product of a linear, in two launches. The first makes u = A x: a block
// has a tile of rows, 16 ranks of a part and a slice of the terms. The second makes B u: a block
// has a tile and a piece of a part's columns, and asks for its B while the first works. In bf16
// tensor cores make both.
#include "kernels/ops/cuda/launch.cuh"

namespace primerl::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kBlocksMin = 4;  // of a processor
constexpr int kRows = 8;        // of a product; a tile has some such groups
constexpr int kRanks = 16;      // of a block, or of a product
constexpr int kStepTerms = 32;  // of a warp, two products
constexpr int kSteps = 4;       // all of whose loads are under way at once
constexpr int kWarpTerms = kSteps * kStepTerms;
constexpr int kSliceTerms = kWarps * kWarpTerms;
constexpr int kLaneColumns = 8;  // of a warp's, two of each product
constexpr int kWarpColumns = kLaneColumns * kRows;
constexpr int kPieceColumns = kWarps * kWarpColumns;
constexpr int kGroupSize = kRows * kRanks;  // u [row][rank], of a tile:
constexpr int kSliceSize = kAdapterTileRows / kRows * kGroupSize;
constexpr int kPrefetchedBytes = 128;  // by one instruction

__host__ __device__ constexpr int count_of(int64_t all, int size) {
  return static_cast<int>((all + size - 1) / size);
}

/// The numbers of a tile's adapter, or of its expert.
template <class T>
__device__ __forceinline__ const T* slot_of(const AddAdaptersArgs& args, const AdapterTile& tile) {
  return static_cast<const T*>(args.slots) + tile.slot * args.slot_stride +
         tile.group * args.group_stride * tile.rank;
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

/// Where a tile's u of a part and of one slice lies for 16 ranks; slices follow each other.
__device__ __forceinline__ float* u_of(const AddAdaptersArgs& args, int part, int rank_tile,
                                       int slice) {
  const int slices = count_of(args.terms, kSliceTerms), tiles = count_of(args.rank_max, kRanks);
  const int64_t of_part = static_cast<int64_t>(blockIdx.y) * args.num_parts + part;
  return args.workspace + ((of_part * tiles + rank_tile) * slices + slice) * kSliceSize;
}

/// Ranks [first, first + 16) of a slice that begins at `begin`; the terms are shared out over the
/// warps, whose sums are added in order.
__device__ void shrink(const AdapterTile& tile, int first, int begin, int terms, const Bf16* a,
                       const Bf16* x, float* u) {
  constexpr int kStride = kRanks + 4;  // lanes of a store meet no bank twice
  __shared__ float sums[kWarps][kRows][kStride];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int quarter = lane % 4, low_rank = first + lane / 4, high_rank = low_rank + kRanks / 2;
  const int from = begin + warp * kWarpTerms + quarter * kVector<Bf16>;
  uint4 low[kSteps] = {}, high[kSteps] = {};
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int at = from + step * kStepTerms;
    if (at < terms && low_rank < tile.rank)
      low[step] = *reinterpret_cast<const uint4*>(a + low_rank * terms + at);
    if (at < terms && high_rank < tile.rank)
      high[step] = *reinterpret_cast<const uint4*>(a + high_rank * terms + at);
  }
  for (int begin_row = 0; begin_row < tile.rows; begin_row += kRows, u += kGroupSize) {
    const int row = begin_row + lane / 4;
    uint4 of_x[kSteps] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      if (const int at = from + step * kStepTerms; at < terms && row < tile.rows)
        of_x[step] = *reinterpret_cast<const uint4*>(x + row * terms + at);
    float c[4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint4 l = low[step], h = high[step], of = of_x[step];
      multiply(c, l.x, h.x, l.y, h.y, of.x, of.y);
      multiply(c, l.z, h.z, l.w, h.w, of.z, of.w);
    }
    if (begin_row > 0) __syncthreads();  // the last group's sums have been read
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sums[warp][2 * quarter + i % 2][lane / 4 + i / 2 * (kRanks / 2)] = c[i];
    __syncthreads();
    if (threadIdx.x >= kGroupSize) continue;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w][threadIdx.x / kRanks][threadIdx.x % kRanks];
    u[threadIdx.x] = sum;
  }
}

/// fp32: a warp a rank.
__device__ void shrink(const AdapterTile& tile, int first, int begin, int terms, const float* a,
                       const float* x, float* u) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int end = min(begin + kSliceTerms, terms);
  for (int i = warp; i < kRanks && first + i < tile.rank; i += kWarps)
    for (int begin_row = 0; begin_row < tile.rows; begin_row += kRows) {
      float sums[kRows] = {};
      for (int at = begin + lane; at < end; at += kWarp) {
        const float factor = a[(first + i) * terms + at];
#pragma unroll
        for (int row = 0; row < kRows; ++row)
          if (begin_row + row < tile.rows) sums[row] += factor * x[(begin_row + row) * terms + at];
      }
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const float sum = warp_sum(sums[row]);
        if (lane == 0) u[(begin_row + row) * kRanks + i] = sum;
      }
    }
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksMin) shrink_kernel(AddAdaptersArgs args) {
  start_next_kernel();
  const AdapterTile tile = args.tiles[blockIdx.y];
  const int slices = count_of(args.terms, kSliceTerms);
  const int rank_tiles = count_of(args.rank_max, kRanks);
  const int slice = static_cast<int>(blockIdx.x) % slices;
  const int rank_tile = static_cast<int>(blockIdx.x) / slices % rank_tiles;
  const int part = static_cast<int>(blockIdx.x) / slices / rank_tiles;
  const AdapterPart& of = args.parts[part];
  if (tile.rows == 0 || rank_tile * kRanks >= tile.rank || (tile.targets & of.target) == 0) return;
  const T* a = slot_of<T>(args, tile) + of.a * tile.rank;
  shrink(tile, rank_tile * kRanks, slice * kSliceTerms, static_cast<int>(args.terms), a,
         static_cast<const T*>(args.x) + tile.first * args.terms,
         u_of(args, part, rank_tile, slice));
}

/// Columns [begin, end) of a part.
struct Piece {
  int part = 0;  // index
  int begin = 0, end = 0;
};

__device__ __forceinline__ Piece piece_at(const AddAdaptersArgs& args, int index) {
  Piece piece;
  for (;; ++piece.part) {
    const auto columns = static_cast<int>(args.parts[piece.part].columns);
    const int count = count_of(columns, kPieceColumns);
    if (index < count) {
      piece.begin = index * kPieceColumns;
      piece.end = min(piece.begin + kPieceColumns, columns);
      return piece;
    }
    index -= count;
  }
}

/// u of four ranks of a row, of all slices in order.
__device__ __forceinline__ float4 sum_of(const float* u, int slices, float scaling) {
  constexpr int kAtOnce = 3;
  float4 sum = {};
  for (int first = 0; first < slices; first += kAtOnce) {
    float4 more[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i < slices)
        more[i] = *reinterpret_cast<const float4*>(u + (first + i) * kSliceSize);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      sum = {sum.x + more[i].x, sum.y + more[i].y, sum.z + more[i].z, sum.w + more[i].w};
  }
  return {scaling * sum.x, scaling * sum.y, scaling * sum.z, scaling * sum.w};
}

/// Of ranks that are multiples of 4.
__device__ void expand_by_products(const AddAdaptersArgs& args, const AdapterTile& tile,
                                   const Piece& piece, const Bf16* b) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, quarter = lane % 4;
  const int slices = count_of(args.terms, kSliceTerms);
  const int column = piece.begin + warp * kWarpColumns + lane / 4 * kLaneColumns;
  const int count = piece.end - column;
  const int64_t first_column = args.parts[piece.part].column;
  const int64_t begin = tile.first * args.columns + first_column + column;
  const bool is_whole = count >= kLaneColumns && (args.columns | first_column) % kLaneColumns == 0;
  uint2 of_b[kLaneColumns];
  const auto load_b = [&](int first) {
    const int rank = first + 4 * quarter;
    const Bf16* from = b + column * tile.rank + rank;
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i, from += tile.rank)
      of_b[i] = rank < tile.rank && i < count ? *reinterpret_cast<const uint2*>(from) : uint2{};
  };
  load_b(0);
  wait_for_last_kernel();
  for (int begin_row = 0; begin_row < tile.rows; begin_row += kRows) {
    ColumnSums sums;
    for (int first = 0; first < tile.rank; first += kRanks) {
      if (tile.rank > kRanks && (first > 0 || begin_row > 0)) load_b(first);
      const float* u = u_of(args, piece.part, first / kRanks, 0) +
                       (begin_row + lane / 4) * kRanks + 4 * quarter;
      sums.add(of_b, sum_of(u, slices, tile.scaling));
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = begin_row + 2 * quarter + j;
      if (row >= tile.rows) continue;
      float values[kLaneColumns];
      sums.of_row(j, values);
      put_columns(args, begin + row * args.columns, is_whole, count, values);
    }
  }
}

/// A thread has some columns, in the order of the ranks.
template <class T>
__device__ void expand(const AddAdaptersArgs& args, const AdapterTile& tile, const Piece& piece,
                       const T* b) {
  __shared__ float u[kAdapterRowsRankMax][kRows];
  const int slices = count_of(args.terms, kSliceTerms);
  const int64_t begin = tile.first * args.columns + args.parts[piece.part].column;
  wait_for_last_kernel();
  for (int begin_row = 0; begin_row < tile.rows; begin_row += kRows) {
    __syncthreads();
    for (int i = threadIdx.x; i < tile.rank * kRows; i += kThreads) {
      const int rank = i / kRows, row = i % kRows;
      const float* from = u_of(args, piece.part, rank / kRanks, 0) +
                          (begin_row + row) * kRanks + rank % kRanks;
      float sum = 0;
      for (int slice = 0; slice < slices; ++slice) sum += from[slice * kSliceSize];
      u[rank][row] = tile.scaling * sum;
    }
    __syncthreads();
    for (int column = piece.begin + static_cast<int>(threadIdx.x); column < piece.end;
         column += kThreads) {
      float sums[kRows] = {};
      for (int rank = 0; rank < tile.rank; ++rank) {
        const float factor = to_float(b[column * tile.rank + rank]);
#pragma unroll
        for (int row = 0; row < kRows; ++row) sums[row] += factor * u[rank][row];
      }
#pragma unroll
      for (int row = 0; row < kRows; ++row)
        if (begin_row + row < tile.rows)
          put<T>(args, begin + (begin_row + row) * args.columns + column, {sums[row]});
    }
  }
}

/// A of the next matrix, which is in the L2 cache by then: by all blocks of the tile, each its
/// part.
template <class T>
__device__ __forceinline__ void ask_for_next(const AddAdaptersArgs& args, const AdapterTile& tile) {
  const T* slot = static_cast<const T*>(args.slots) + tile.slot * args.slot_stride;
  const auto* from = reinterpret_cast<const char*>(slot + args.next * tile.rank);
  const int bytes = static_cast<int>(args.next_size) * tile.rank * static_cast<int>(sizeof(T));
  const auto first = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int step = static_cast<int>(gridDim.x) * kThreads * kPrefetchedBytes;
  for (int at = first * kPrefetchedBytes; at < bytes; at += step)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
}

/// Blocks of nobody's tile have nothing to wait for, and leave their place to others.
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksMin) expand_kernel(AddAdaptersArgs args) {
  const AdapterTile tile = args.tiles[blockIdx.y];
  if (tile.rows == 0) return;
  const Piece piece = piece_at(args, static_cast<int>(blockIdx.x));
  const AdapterPart& part = args.parts[piece.part];
  if (tile.rank > 0) ask_for_next<T>(args, tile);
  if (tile.rank > 0 && (tile.targets & part.target) != 0) {
    const T* b = slot_of<T>(args, tile) + part.b * tile.rank;
    if constexpr (sizeof(T) == sizeof(Bf16))
      if (tile.rank % 4 == 0) return expand_by_products(args, tile, piece, b);
    return expand(args, tile, piece, b);
  }
  wait_for_last_kernel();
  if (args.sums == nullptr) return;
  for (int column = piece.begin + static_cast<int>(threadIdx.x); column < piece.end;
       column += kThreads)
    for (int row = 0; row < tile.rows; ++row)
      args.sums[(tile.first + row) * args.columns + part.column + column] = 0;
}

template <class T>
void start(const AddAdaptersArgs& args, unsigned shrinks, unsigned pieces, Stream stream) {
  const auto tiles = static_cast<unsigned>(args.num_tiles);
  shrink_kernel<T><<<dim3(shrinks, tiles), kThreads, 0, stream>>>(args);
  launch(expand_kernel<T>, dim3(pieces, tiles), kThreads, 0, stream, args);
}

}  // namespace

int64_t adapters_workspace(const AddAdaptersArgs& args) {
  return args.num_tiles * args.num_parts * count_of(args.rank_max, kRanks) *
         count_of(args.terms, kSliceTerms) * kSliceSize;
}

Outcome add_adapters(const AddAdaptersArgs& args, Stream stream) {
  if (args.num_tiles == 0 || args.num_parts == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  int pieces = 0;
  for (int i = 0; i < args.num_parts; ++i) pieces += count_of(args.parts[i].columns, kPieceColumns);
  const int shrinks = args.num_parts * count_of(args.rank_max, kRanks) *
                      count_of(args.terms, kSliceTerms);
  const auto run = args.type == Type::kFloat32 ? start<float> : start<Bf16>;
  run(args, static_cast<unsigned>(shrinks), static_cast<unsigned>(pieces), stream);
  return launched();
}

}  // namespace primerl::cuda
