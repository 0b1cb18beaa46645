// The LoRA delta of a linear layer, in two launches. The first (shrink) computes u = A x: a block
// has a tile of rows, 16 ranks of a part and a slice of the terms. The second (expand) computes B
// u: a block has a tile and a piece of a part's columns, and loads its B while the first runs. In
// bf16 both use tensor cores. A decode step launches only the first.
#include "kernels/cuda/ops/adapters.cuh"

namespace primerl::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kBlocksMin = 4;   // blocks per multiprocessor
constexpr int kStepTerms = 32;  // of a warp, two GEMMs
constexpr int kSteps = 4;       // whose loads are all in flight at once
constexpr int kWarpTerms = kSteps * kStepTerms;
static_assert(kWarps * kWarpTerms == kShrinkTerms);
constexpr int kPieceColumns = kWarps * kWarpColumns;
constexpr int kGroupSize = kGroupRows * kShrinkRanks;  // u [row][rank]
constexpr int kPrefetchedBytes = 128;                  // by one instruction

/// The values of a tile's adapter, or of its expert.
template <class T>
__device__ __forceinline__ const T* slot_of(const AddAdaptersArgs& args, const AdapterTile& tile) {
  return static_cast<const T*>(args.slots) + tile.slot * args.slot_stride +
         tile.group * args.group_stride * tile.rank;
}

/// Adds to elements of y, which are Y, from `at` on.
template <class Y, int kCount>
__device__ __forceinline__ void put(const AddAdaptersArgs& args, int64_t at,
                                    const float (&values)[kCount]) {
  Y* y = static_cast<Y*>(args.y) + at;
  float sums[kCount];
  load(y, sums);
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] += values[i];
  store(y, sums);
}
/// The first `count` of a lane's columns; 16 bytes at once where `is_whole`.
template <class Y>
__device__ __forceinline__ void put_columns(const AddAdaptersArgs& args, int64_t at, bool is_whole,
                                            int count, const float (&values)[kLaneColumns]) {
  constexpr int kAtOnce = kVector<Y> < kLaneColumns ? kVector<Y> : kLaneColumns;
  if (is_whole) {
#pragma unroll
    for (int first = 0; first < kLaneColumns; first += kAtOnce) {
      float some[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) some[i] = values[first + i];
      put<Y>(args, at + first, some);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i)
    if (i < count) put<Y>(args, at + i, {values[i]});
}

/// Ranks [first, first + 16) of a slice that begins at `begin`; the terms are shared out over the
/// warps, whose sums are added in order.
__device__ void shrink(const AdapterTile& tile, int first, int begin, int terms, const Bf16* a,
                       const Bf16* x, float* u) {
  constexpr int kStride = kShrinkRanks + 4;  // padded, so that the lanes of a store use different
                                             // banks
  __shared__ float sums[kWarps][kGroupRows][kStride];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int quarter = lane % 4, low_rank = first + lane / 4;
  const int high_rank = low_rank + kShrinkRanks / 2;
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
  for (int begin_row = 0; begin_row < tile.rows; begin_row += kGroupRows, u += kGroupSize) {
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
      mma(c, l.x, h.x, l.y, h.y, of.x, of.y);
      mma(c, l.z, h.z, l.w, h.w, of.z, of.w);
    }
    if (begin_row > 0) __syncthreads();  // the last group's sums have been read
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sums[warp][2 * quarter + i % 2][lane / 4 + i / 2 * (kShrinkRanks / 2)] = c[i];
    __syncthreads();
    const int mine = static_cast<int>(threadIdx.x) / kShrinkRanks;
    if (mine >= kGroupRows || begin_row + mine >= tile.rows) continue;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w][mine][threadIdx.x % kShrinkRanks];
    u[threadIdx.x] = sum;
  }
}

/// fp32: one warp per rank.
__device__ void shrink(const AdapterTile& tile, int first, int begin, int terms, const float* a,
                       const float* x, float* u) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int end = min(begin + kShrinkTerms, terms);
  for (int i = warp; i < kShrinkRanks && first + i < tile.rank; i += kWarps)
    for (int begin_row = 0; begin_row < tile.rows; begin_row += kGroupRows) {
      float sums[kGroupRows] = {};
      for (int at = begin + lane; at < end; at += kWarp) {
        const float factor = a[(first + i) * terms + at];
#pragma unroll
        for (int row = 0; row < kGroupRows; ++row)
          if (begin_row + row < tile.rows) sums[row] += factor * x[(begin_row + row) * terms + at];
      }
#pragma unroll
      for (int row = 0; row < kGroupRows; ++row) {
        const float sum = warp_sum(sums[row]);
        if (lane == 0 && begin_row + row < tile.rows) u[(begin_row + row) * kShrinkRanks + i] = sum;
      }
    }
}

/// Prefetches a tile's slot to the L2 cache. Each block of the tile prefetches its part.
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

/// Rows of u in the workspace: the tiles' own, or kAdapterTileRows for each tile.
struct Rows {
  int64_t count;
  bool are_the_tiles;

  __device__ __forceinline__ int64_t first(const AdapterTile& tile) const {
    return are_the_tiles ? tile.first : static_cast<int64_t>(blockIdx.y) * kAdapterTileRows;
  }
};

/// Prefetches come last: the numbers of this matrix are loaded first.
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksMin)
    shrink_kernel(AddAdaptersArgs args, Rows rows) {
  start_next_kernel();
  const AdapterTile tile = args.tiles[blockIdx.y];
  if (tile.rows == 0 || tile.rank == 0) return;
  const int slices = count_of(args.terms, kShrinkTerms);
  const int rank_tiles = count_of(args.rank_max, kShrinkRanks);
  const int slice = static_cast<int>(blockIdx.x) % slices;
  const int rank_tile = static_cast<int>(blockIdx.x) / slices % rank_tiles;
  const int part = static_cast<int>(blockIdx.x) / slices / rank_tiles;
  const AdapterPart& of = args.parts[part];
  if (rank_tile * kShrinkRanks < tile.rank && (tile.targets & of.target) != 0)
    shrink(tile, rank_tile * kShrinkRanks, slice * kShrinkTerms, static_cast<int>(args.terms),
           slot_of<T>(args, tile) + of.a * tile.rank,
           static_cast<const T*>(args.x) + tile.first * args.terms,
           u_of(args, rows.count, slice, part, rank_tile, rows.first(tile)));
  ask_for_next<T>(args, tile);
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

/// scaling * u of four ranks of a row; adds all slices in order, `stride` apart.
__device__ __forceinline__ float4 sum_of(const float* u, int slices, int64_t stride,
                                         float scaling) {
  float4 sum = {};
  for (int first = 0; first < slices; first += kShrinkSlicesAtOnce) {
    float4 more[kShrinkSlicesAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kShrinkSlicesAtOnce; ++i)
      if (first + i < slices) more[i] = *reinterpret_cast<const float4*>(u + (first + i) * stride);
#pragma unroll
    for (int i = 0; i < kShrinkSlicesAtOnce; ++i)
      sum = {sum.x + more[i].x, sum.y + more[i].y, sum.z + more[i].z, sum.w + more[i].w};
  }
  return {scaling * sum.x, scaling * sum.y, scaling * sum.z, scaling * sum.w};
}

/// u of this block's tile and of a part.
struct TileU {
  const AddAdaptersArgs& args;
  const int part;
  const int slices = count_of(args.terms, kShrinkTerms);
  const int64_t num_rows = args.num_tiles * kAdapterTileRows;
  const int64_t stride = u_of(args, num_rows, 1, 0, 0, 0) - args.workspace;  // of slices

  __device__ __forceinline__ TileU(const AddAdaptersArgs& of, int part_of)
      : args(of), part(part_of) {}
  __device__ __forceinline__ const float* at(int rank_tile, int row) const {
    return u_of(args, num_rows, 0, part, rank_tile, blockIdx.y * kAdapterTileRows + row);
  }
};

/// Of ranks that are multiples of 4.
template <class Y>
__device__ void expand_by_mma(const AddAdaptersArgs& args, const AdapterTile& tile,
                              const Piece& piece, const Bf16* b) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, quarter = lane % 4;
  const int column = piece.begin + warp * kWarpColumns + lane / 4 * kLaneColumns;
  const int count = piece.end - column;
  const int64_t first_column = args.parts[piece.part].column;
  const int64_t begin = tile.first * args.columns + first_column + column;
  const bool is_whole = count >= kLaneColumns && (args.columns | first_column) % kLaneColumns == 0;
  LaneColumns of_b;
  const auto load_b = [&](int first) {
    load_columns(b + column * tile.rank, first + 4 * quarter, tile.rank, count, of_b);
  };
  const TileU u(args, piece.part);
  load_b(0);
  wait_for_last_kernel();
  for (int begin_row = 0; begin_row < tile.rows; begin_row += kGroupRows) {
    ColumnSums sums;
    for (int first = 0; first < tile.rank; first += kShrinkRanks) {
      if (tile.rank > kShrinkRanks && (first > 0 || begin_row > 0)) load_b(first);
      const int row = begin_row + lane / 4;
      float4 factor = {};
      if (row < tile.rows)
        factor =
            sum_of(u.at(first / kShrinkRanks, row) + 4 * quarter, u.slices, u.stride, tile.scaling);
      sums.add(of_b, factor);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = begin_row + 2 * quarter + j;
      if (row >= tile.rows) continue;
      float values[kLaneColumns];
      sums.of_row(j, values);
      put_columns<Y>(args, begin + row * args.columns, is_whole, count, values);
    }
  }
}

/// A thread computes some columns and adds the ranks in order.
template <class T, class Y>
__device__ void expand(const AddAdaptersArgs& args, const AdapterTile& tile, const Piece& piece,
                       const T* b) {
  __shared__ float u[kAdapterRowsRankMax][kGroupRows];
  const TileU of_tile(args, piece.part);
  const int64_t begin = tile.first * args.columns + args.parts[piece.part].column;
  wait_for_last_kernel();
  for (int begin_row = 0; begin_row < tile.rows; begin_row += kGroupRows) {
    __syncthreads();
    for (int i = threadIdx.x; i < tile.rank * kGroupRows; i += kThreads) {
      const int rank = i / kGroupRows, row = i % kGroupRows;
      if (begin_row + row >= tile.rows) continue;
      const float* from = of_tile.at(rank / kShrinkRanks, begin_row + row) + rank % kShrinkRanks;
      float sum = 0;
      for (int slice = 0; slice < of_tile.slices; ++slice) sum += from[slice * of_tile.stride];
      u[rank][row] = tile.scaling * sum;
    }
    __syncthreads();
    for (int column = piece.begin + static_cast<int>(threadIdx.x); column < piece.end;
         column += kThreads) {
      float sums[kGroupRows] = {};
      for (int rank = 0; rank < tile.rank; ++rank) {
        const float factor = to_float(b[column * tile.rank + rank]);
#pragma unroll
        for (int row = 0; row < kGroupRows; ++row) sums[row] += factor * u[rank][row];
      }
#pragma unroll
      for (int row = 0; row < kGroupRows; ++row)
        if (begin_row + row < tile.rows)
          put<Y>(args, begin + (begin_row + row) * args.columns + column, {sums[row]});
    }
  }
}

/// Blocks of a tile without an adapter do not wait; they end and free their multiprocessor.
template <class T, class Y>
__global__ void __launch_bounds__(kThreads, kBlocksMin) expand_kernel(AddAdaptersArgs args) {
  const AdapterTile tile = args.tiles[blockIdx.y];
  const Piece piece = piece_at(args, static_cast<int>(blockIdx.x));
  const AdapterPart& part = args.parts[piece.part];
  if (tile.rows == 0 || tile.rank == 0 || (tile.targets & part.target) == 0) return;
  const T* b = slot_of<T>(args, tile) + part.b * tile.rank;
  if constexpr (sizeof(T) == sizeof(Bf16))
    if (tile.rank % 4 == 0) return expand_by_mma<Y>(args, tile, piece, b);
  expand<T, Y>(args, tile, piece, b);
}

template <class T>
void start_shrink(const AddAdaptersArgs& args, Rows rows, Stream stream) {
  const int blocks =
      args.num_parts * count_of(args.rank_max, kShrinkRanks) * count_of(args.terms, kShrinkTerms);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(args.num_tiles));
  shrink_kernel<T><<<grid, kThreads, 0, stream>>>(args, rows);
}

template <class T>
void start(const AddAdaptersArgs& args, Stream stream) {
  start_shrink<T>(args, {args.num_tiles * kAdapterTileRows, false}, stream);
  int pieces = 0;
  for (int i = 0; i < args.num_parts; ++i) pieces += count_of(args.parts[i].columns, kPieceColumns);
  const dim3 grid(static_cast<unsigned>(pieces), static_cast<unsigned>(args.num_tiles));
  const auto kernel = args.has_fp32_y ? expand_kernel<T, float> : expand_kernel<T, T>;
  launch(kernel, grid, kThreads, 0, stream, args);
}

/// Floats of u of some rows.
int64_t u_size(const AddAdaptersArgs& args, int64_t rows) {
  return rows * args.num_parts * count_of(args.rank_max, kShrinkRanks) *
         count_of(args.terms, kShrinkTerms) * kShrinkRanks;
}

}  // namespace

int64_t adapters_workspace(const AddAdaptersArgs& args) {
  return u_size(args, args.num_tiles * kAdapterTileRows);
}

Outcome add_adapters(const AddAdaptersArgs& args, Stream stream) {
  if (args.num_tiles == 0 || args.num_parts == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  args.type == Type::kFloat32 ? start<float>(args, stream) : start<Bf16>(args, stream);
  return launched();
}

int64_t lora_delta_workspace(const LoraDelta& lora_delta) {
  return u_size(lora_delta.of, lora_delta.num_rows);
}

Outcome shrink_adapters(const LoraDelta& lora_delta, Stream stream) {
  const AddAdaptersArgs& args = lora_delta.of;
  if (lora_delta.num_rows == 0 || args.num_tiles == 0 || args.num_parts == 0) return {};
  if (const char* fault = fault_of(lora_delta); fault != nullptr) return {fault};
  const Rows rows = {lora_delta.num_rows, true};
  args.type == Type::kFloat32 ? start_shrink<float>(args, rows, stream)
                              : start_shrink<Bf16>(args, rows, stream);
  return launched();
}

}  // namespace primerl::cuda
