/// Where the rows of adapters lie among the rows of experts. All promises of cuda_ops.h hold.
#pragma once

#include <algorithm>

#include "kernels/ops/cuda_adapters.h"

namespace primerl::cuda {

/// Tiles of the places that sort_by_expert() gave the rows of adapters: since it keeps the order of
/// the rows, those of an expert and a run lie together. Places of no run are in no tile.
struct TilePlacesArgs {
  int64_t places = 0;
  int32_t num_experts = 0;           // up to kExpertsMax
  const int32_t* ends = nullptr;     // [num_experts]
  const int32_t* sources = nullptr;  // [places], rows of the pass from first_row on
  int64_t first_row = 0;
  /// [num_runs] rows of the pass, of any number: each begins where one before it has ended, or
  /// later. What a tile has of its run but for rows and group is the run's.
  const AdapterTile* runs = nullptr;
  int64_t num_runs = 0;  // up to kRunsMax
  int64_t tile_rows = kAdapterTileRows;
  int64_t num_tiles = 0;         // tiles_of_places() of the same numbers
  AdapterTile* tiles = nullptr;  // [num_tiles], `group` is the expert; some have no rows
  /// [num_experts, num_runs], or null: where the places of each expert's runs end.
  int32_t* run_ends = nullptr;
};
inline constexpr int64_t kRunsMax = 4096;
/// Each place may begin one; or each expert's run has as many as it fills, and one.
inline int64_t tiles_of_places(int64_t places, int32_t num_experts, int64_t num_runs,
                               int64_t tile_rows) {
  return std::min(places, places / tile_rows + num_experts * num_runs);
}
Outcome tile_places(const TilePlacesArgs& args, Stream stream);

}  // namespace primerl::cuda
