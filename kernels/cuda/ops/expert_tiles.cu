// Tiles of adapter rows among rows sorted by expert. A thread has one sorted row; it finds its
// expert, its run and the first row of both by binary search. The ends of experts and runs are in
// shared memory.
#include "kernels/cuda/ops/cuda_expert_tiles.h"
#include "kernels/cuda/ops/device.cuh"

namespace primerl::cuda {
namespace {

constexpr int kThreads = 256;

/// Index in [begin, end) of the first value that is at least `least`, or end; values never
/// decrease.
__device__ __forceinline__ int32_t first_from(const int32_t* values, int32_t begin, int32_t end,
                                              int32_t least) {
  while (begin < end) {
    const int32_t middle = begin + (end - begin) / 2;
    if (values[middle] < least)
      begin = middle + 1;
    else
      end = middle;
  }
  return begin;
}

/// `is_tile_per_row`: tile i begins at sorted row i, or is empty. Otherwise tiles are adjacent,
/// with one spare tile for each run of an expert; unused tiles were cleared before.
__global__ void __launch_bounds__(kThreads)
    expert_tiles_kernel(ExpertTilesArgs args, bool is_tile_per_row) {
  extern __shared__ int32_t shared[];
  const auto num_runs = static_cast<int32_t>(args.num_runs);
  int32_t* ends = shared;
  int32_t* firsts = ends + args.num_experts;
  int32_t* row_ends = firsts + num_runs;
  for (int i = static_cast<int>(threadIdx.x); i < args.num_experts; i += kThreads)
    ends[i] = args.ends[i];
  for (int i = static_cast<int>(threadIdx.x); i < num_runs; i += kThreads) {
    firsts[i] = args.runs[i].first - static_cast<int32_t>(args.first_row);
    row_ends[i] = firsts[i] + args.runs[i].rows;
  }
  __syncthreads();
  const auto begin_of = [&](int32_t expert) { return expert == 0 ? 0 : ends[expert - 1]; };
  const auto i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (args.run_ends != nullptr && i < args.num_experts * num_runs) {
    const int32_t expert = i / num_runs;
    args.run_ends[i] =
        first_from(args.sources, begin_of(expert), ends[expert], row_ends[i - expert * num_runs]);
  }
  if (i >= args.num_pairs) return;
  const int32_t expert = first_from(ends, 0, args.num_experts, i + 1);
  const int32_t row = args.sources[i];
  const int32_t run = first_from(row_ends, 0, num_runs, row + 1);
  const auto size = static_cast<int32_t>(args.tile_rows);
  AdapterTile tile = {};
  int32_t at = i;
  if (run < num_runs && firsts[run] <= row) {
    const int32_t begin = first_from(args.sources, begin_of(expert), i, firsts[run]);
    const int32_t before = (i - begin) / size;
    if (before * size == i - begin) {
      tile = args.runs[run];
      tile.first = i;
      tile.rows = first_from(args.sources, i, min(ends[expert], i + size), row_ends[run]) - i;
      tile.group = expert;
    }
    if (!is_tile_per_row) at = begin / size + expert * num_runs + run + before;
  }
  if (is_tile_per_row || tile.rows > 0) args.tiles[at] = tile;
}

}  // namespace

Outcome make_expert_tiles(const ExpertTilesArgs& args, Stream stream) {
  if (args.num_pairs == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const bool is_tile_per_row = args.num_tiles == args.num_pairs;
  if (!is_tile_per_row) {
    const size_t size = static_cast<size_t>(args.num_tiles) * sizeof(AdapterTile);
    const cudaError_t cleared = cudaMemsetAsync(args.tiles, 0, size, stream);
    if (cleared != cudaSuccess) return {cudaGetErrorString(cleared)};
  }
  int64_t threads = args.num_pairs;
  if (args.run_ends != nullptr && threads < args.num_experts * args.num_runs)
    threads = args.num_experts * args.num_runs;
  const auto shared = static_cast<size_t>(args.num_experts + 2 * args.num_runs) * sizeof(int32_t);
  expert_tiles_kernel<<<static_cast<unsigned>(divide_up(threads, kThreads)), kThreads, shared,
                        stream>>>(args, is_tile_per_row);
  return launched();
}

}  // namespace primerl::cuda
