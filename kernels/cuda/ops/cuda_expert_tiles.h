/// Tiles of adapter rows among rows that are sorted by expert. All promises of cuda_ops.h hold.
#pragma once

#include <algorithm>

#include "kernels/cuda/ops/cuda_adapters.h"

namespace primerl::cuda {

/// Builds tiles of the sorted rows of adapters. sort_by_expert() keeps the order of the rows, so
/// the rows of one expert and one run are adjacent. Sorted rows without a run are in no tile.
struct ExpertTilesArgs {
  int64_t num_pairs = 0;
  int32_t num_experts = 0;           // up to kExpertsMax
  const int32_t* ends = nullptr;     // [num_experts]
  const int32_t* sources = nullptr;  // [num_pairs]: rows of the pass, counted from first_row
  int64_t first_row = 0;
  /// [num_runs] ranges of rows of the pass, of any length. Each begins at or after the end of the
  /// one before it. A tile copies all fields of its run except rows and group.
  const AdapterTile* runs = nullptr;
  int64_t num_runs = 0;  // up to kRunsMax
  int64_t tile_rows = kAdapterTileRows;
  int64_t num_tiles = 0;         // num_expert_tiles_of() of the same numbers
  AdapterTile* tiles = nullptr;  // [num_tiles], `group` is the expert; some have no rows
  /// [num_experts, num_runs], or null: the end of each expert's runs in the sorted rows.
  int32_t* run_ends = nullptr;
};
inline constexpr int64_t kRunsMax = 4096;
/// The largest number of tiles: one for each sorted row, or for each expert's run the full tiles
/// and one more.
inline int64_t num_expert_tiles_of(int64_t num_pairs, int32_t num_experts, int64_t num_runs,
                                   int64_t tile_rows) {
  return std::min(num_pairs, num_pairs / tile_rows + num_experts * num_runs);
}
Outcome make_expert_tiles(const ExpertTilesArgs& args, Stream stream);

}  // namespace primerl::cuda
