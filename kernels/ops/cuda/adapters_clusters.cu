// What adapters add to the products of a decode step: a cluster of blocks has a tile of up to eight
// rows. Each block makes u = A x of some terms, for all parts of the matrix; then each adds up the
// sums of all, in order, and makes B u of some columns. Two launches, as in adapters.cu, take
// longer than the product beside which they run. A block also asks for its share of what the next
// matrix needs, which is in the L2 cache by then.
#include "kernels/ops/cuda/adapters.cuh"
#include "kernels/ops/cuda/cluster.cuh"

namespace primerl::cuda {
namespace {

constexpr int kBlocks = kClusterBlocks;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kBlocksMin = 4;   // of a processor
constexpr int kTerms = 16;      // of a product
constexpr int kBatch = 4;       // products of a warp whose loads are under way at once
constexpr int kPrefetched = 128;  // bytes, by one instruction
constexpr int kUnitSize = kProductRows * kProductRanks;
constexpr int kStride = kProductRanks + 4;  // lanes of a store meet no bank twice
constexpr int kWarpUnitSize = kProductRows * kStride;
constexpr int kUnitsMax = kAdapterPartsMax * (kAdapterRowsRankMax / kProductRanks);

/// Shared memory: sums of each warp, then u, and the sums of the block, all of each unit: 16 ranks
/// of a part.
constexpr size_t shared_bytes(int units) {
  return sizeof(float) * units * (kWarps * kWarpUnitSize + kUnitSize);
}

/// What block `block` of the cluster has where we have `own`.
__device__ __forceinline__ float4 read_of(int block, const float* own) {
  float4 value = {};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const auto here = static_cast<unsigned>(__cvta_generic_to_shared(own));
  asm volatile(
      "{ .reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there]; }"
      : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
      : "r"(here), "r"(block)
      : "memory");
#endif
  return value;
}

__device__ __forceinline__ void ask_for_next(const AddAdaptersArgs& args, const AdapterTile& tile) {
  const auto* from =
      reinterpret_cast<const char*>(slot_of<Bf16>(args, tile) + args.next * tile.rank);
  const int bytes = static_cast<int>(args.next_size) * tile.rank * static_cast<int>(sizeof(Bf16));
  const int first = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  for (int at = first * kPrefetched; at < bytes; at += kBlocks * kThreads * kPrefetched)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
}

/// The products of a warp in their order: all rounds of a unit, then those of the next.
struct Cursor {
  int unit = 0, part = 0, rank_tile = 0, round = 0;

  __device__ __forceinline__ void advance(int rounds, int rank_tiles) {
    if (++round < rounds) return;
    round = 0;
    ++unit;
    if (++rank_tile < rank_tiles) return;
    rank_tile = 0;
    ++part;
  }
};

/// Sums of the block's part of the terms, [units][row][rank] in `own`.
__device__ void shrink(const AddAdaptersArgs& args, const AdapterTile& tile, int units,
                       float* of_warps, float* own) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, quarter = lane % 4;
  const int terms = static_cast<int>(args.terms), rank_tiles = count_of(tile.rank, kProductRanks);
  const int rounds = count_of(terms, kTerms * kWarps * kBlocks);
  const int begin = (static_cast<int>(blockIdx.x) * rounds * kWarps + warp) * kTerms + 4 * quarter;
  const Bf16* slot = slot_of<Bf16>(args, tile);
  const Bf16* x = static_cast<const Bf16*>(args.x) + (tile.first + lane / 4) * args.terms;
  const bool has_row = lane / 4 < tile.rows;
  float c[4] = {};
  Cursor asked, added;
  while (added.unit < units) {
    uint2 low[kBatch] = {}, high[kBatch] = {}, of_x[kBatch] = {};
#pragma unroll
    for (int i = 0; i < kBatch; ++i, asked.advance(rounds, rank_tiles)) {
      const int at = begin + asked.round * kWarps * kTerms;
      if (asked.unit >= units || at >= terms) continue;
      const AdapterPart& part = args.parts[asked.part];
      if ((tile.targets & part.target) == 0) continue;
      const int rank = asked.rank_tile * kProductRanks + lane / 4;
      const Bf16* a = slot + part.a * tile.rank + rank * terms + at;
      if (rank < tile.rank) low[i] = *reinterpret_cast<const uint2*>(a);
      if (rank + kProductRanks / 2 < tile.rank)
        high[i] = *reinterpret_cast<const uint2*>(a + kProductRanks / 2 * terms);
      if (has_row) of_x[i] = *reinterpret_cast<const uint2*>(x + at);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i, added.advance(rounds, rank_tiles)) {
      multiply(c, low[i].x, high[i].x, low[i].y, high[i].y, of_x[i].x, of_x[i].y);
      if (added.round != rounds - 1 || added.unit >= units) continue;
      float* to = of_warps + (warp * units + added.unit) * kWarpUnitSize;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        to[(2 * quarter + j % 2) * kStride + lane / 4 + j / 2 * (kProductRanks / 2)] = c[j];
        c[j] = 0;
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < units * kUnitSize; i += kThreads) {
    const int unit = i / kUnitSize, row = i / kProductRanks % kProductRows;
    const float* from = of_warps + unit * kWarpUnitSize + row * kStride + i % kProductRanks;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += from[w * units * kWarpUnitSize];
    own[i] = sum;
  }
}

/// u of all blocks' sums.
__device__ void gather(const AdapterTile& tile, int units, const float* own, float* u) {
  for (int i = 4 * static_cast<int>(threadIdx.x); i < units * kUnitSize; i += 4 * kThreads) {
    float4 parts[kBlocks], sum = {};
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) parts[block] = read_of(block, own + i);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
      sum = {sum.x + parts[block].x, sum.y + parts[block].y, sum.z + parts[block].z,
             sum.w + parts[block].w};
    *reinterpret_cast<float4*>(u + i) = {tile.scaling * sum.x, tile.scaling * sum.y,
                                         tile.scaling * sum.z, tile.scaling * sum.w};
  }
}

/// A warp's columns of a part; `part` is num_parts beyond the last.
struct Columns {
  int part = 0;
  int first = 0;  // the lane's
  int count = 0;  // from there to the end of the part
};

__device__ __forceinline__ Columns columns_at(const AddAdaptersArgs& args, int index) {
  Columns found;
  for (; found.part < args.num_parts; ++found.part) {
    const auto columns = static_cast<int>(args.parts[found.part].columns);
    const int count = count_of(columns, kWarpColumns);
    if (index < count) {
      found.first = index * kWarpColumns + threadIdx.x % kWarp / 4 * kLaneColumns;
      found.count = columns - found.first;
      return found;
    }
    index -= count;
  }
  return found;
}

/// B of the lane's columns for four ranks, zeros beyond the last.
__device__ __forceinline__ void load_b(const AddAdaptersArgs& args, const AdapterTile& tile,
                                       const Columns& columns, int first_rank,
                                       uint2 (&b)[kLaneColumns]) {
  const int rank = first_rank + threadIdx.x % 4 * 4;
  const AdapterPart* part = args.parts + min(columns.part, args.num_parts - 1);
  const bool is_there = columns.part < args.num_parts && (tile.targets & part->target) != 0;
  const Bf16* from =
      slot_of<Bf16>(args, tile) + part->b * tile.rank + columns.first * tile.rank + rank;
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i, from += tile.rank) {
    b[i] = {};
    if (!is_there || i >= columns.count || rank >= tile.rank) continue;
    if (tile.rank % 4 == 0) {
      b[i] = *reinterpret_cast<const uint2*>(from);
      continue;
    }
    const auto bits = [&](int j) -> unsigned {
      return rank + j < tile.rank ? __bfloat16_as_ushort(from[j]) : 0;
    };
    b[i] = {bits(0) | bits(1) << 16, bits(2) | bits(3) << 16};
  }
}

__global__ void __launch_bounds__(kThreads, kBlocksMin) cluster_kernel(AddAdaptersArgs args) {
  extern __shared__ float shared[];
  const AdapterTile tile = args.tiles[blockIdx.y];
  if (tile.rows == 0) return;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int rank_tiles = count_of(tile.rank, kProductRanks), units = args.num_parts * rank_tiles;
  float* u = shared;  // once the warps' sums are used
  float* own = shared + kWarps * units * kWarpUnitSize;
  int index = static_cast<int>(blockIdx.x) + kBlocks * warp;
  Columns columns = columns_at(args, index);
  uint2 b[kLaneColumns];
  load_b(args, tile, columns, 0, b);
  if (units > 0) {
    shrink(args, tile, units, shared, own);
    ask_for_next(args, tile);
    arrive_at_cluster();
    wait_for_cluster();
    gather(tile, units, own, u);
    __syncthreads();
    arrive_at_cluster();  // nobody reads others any more
  }
  while (columns.part < args.num_parts) {
    const AdapterPart& part = args.parts[columns.part];
    ColumnSums sums;
    for (int first = 0; first < tile.rank && (tile.targets & part.target) != 0;
         first += kProductRanks) {
      if (first > 0) load_b(args, tile, columns, first, b);
      const float* of_unit = u + (columns.part * rank_tiles + first / kProductRanks) * kUnitSize;
      sums.add(b, *reinterpret_cast<const float4*>(of_unit + lane / 4 * kProductRanks +
                                                   lane % 4 * 4));
    }
    const bool is_whole =
        columns.count >= kLaneColumns && (args.columns | part.column) % kLaneColumns == 0;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = 2 * (lane % 4) + j;
      if (row >= tile.rows) continue;
      float values[kLaneColumns];
      sums.of_row(j, values);
      put_columns(args, (tile.first + row) * args.columns + part.column + columns.first, is_whole,
                  columns.count, values);
    }
    columns = columns_at(args, index += kBlocks * kWarps);
    load_b(args, tile, columns, 0, b);
  }
  if (units > 0) wait_for_cluster();
}

}  // namespace

bool add_in_clusters(const AddAdaptersArgs& args, Stream stream) {
  if (!is_for_cc90(cluster_kernel)) return false;
  const int units = args.num_parts * count_of(args.rank_max, kProductRanks);
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kBlocks, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kBlocks, static_cast<unsigned>(args.num_tiles));
  config.blockDim = kThreads;
  config.dynamicSmemBytes = shared_bytes(units);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  // The limit is one for all shapes, since other threads may start this kernel for other ones.
  if (cudaFuncSetAttribute(cluster_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(shared_bytes(kUnitsMax))) == cudaSuccess &&
      cudaLaunchKernelEx(&config, cluster_kernel, args) == cudaSuccess)
    return true;
  static_cast<void>(cudaGetLastError());
  return false;
}

}  // namespace primerl::cuda
