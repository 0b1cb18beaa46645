// Tiles of adapter rows among sorted expert rows, computed on the host.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cuda/aten/on_stream.h"
#include "kernels/cuda/ops/cuda_expert_tiles.h"

namespace primerl::cuda {
namespace {

/// The sorted rows of one expert and one run, [begin, end).
void cut(const ExpertTilesArgs& args, const AdapterTile& run, int64_t expert, int64_t number,
         int64_t begin, int64_t end, std::vector<AdapterTile>& tiles) {
  for (int64_t first = begin; first < end; first += args.tile_rows) {
    const int64_t at = args.num_tiles == args.num_pairs
                           ? first
                           : begin / args.tile_rows + expert * args.num_runs + number +
                                 (first - begin) / args.tile_rows;
    AdapterTile& tile = tiles[static_cast<size_t>(at)];
    tile = run;
    tile.first = static_cast<int32_t>(first);
    tile.rows = static_cast<int32_t>(std::min(args.tile_rows, end - first));
    tile.group = static_cast<int32_t>(expert);
  }
}

}  // namespace

Outcome make_expert_tiles(const ExpertTilesArgs& args, Stream stream) {
  if (args.num_pairs == 0) return {};
  if (const char* fault = fault_of(args); fault != nullptr) return {fault};
  const OnStream on(stream);
  constexpr auto kTileBytes = static_cast<int64_t>(sizeof(AdapterTile));
  const at::Tensor on_runs = on.on_host(on.bytes(args.runs, args.num_runs * kTileBytes));
  const at::Tensor on_ends = on.on_host(on.ints(args.ends, {args.num_experts}));
  const at::Tensor on_sources = on.on_host(on.ints(args.sources, {args.num_pairs}));
  const auto* runs = static_cast<const AdapterTile*>(on_runs.const_data_ptr());
  const auto* ends = on_ends.const_data_ptr<int32_t>();
  const auto* sources = on_sources.const_data_ptr<int32_t>();
  std::vector<AdapterTile> tiles(static_cast<size_t>(args.num_tiles));
  std::vector<int32_t> run_ends;
  for (int64_t expert = 0, place = 0; expert < args.num_experts; place = ends[expert++])
    for (int64_t i = 0; i < args.num_runs; ++i) {
      const int64_t first = runs[i].first - args.first_row;
      while (place < ends[expert] && sources[place] < first) ++place;
      const int64_t begin = place;
      while (place < ends[expert] && sources[place] < first + runs[i].rows) ++place;
      cut(args, runs[i], expert, i, begin, place, tiles);
      run_ends.push_back(static_cast<int32_t>(place));
    }
  const auto put = [&](const void* from, void* to, int64_t count) {
    const at::Tensor host = at::empty({count}, at::kByte);
    std::memcpy(host.mutable_data_ptr(), from, static_cast<size_t>(count));
    on.bytes(to, count).copy_(host);
  };
  put(tiles.data(), args.tiles, args.num_tiles * kTileBytes);
  if (args.run_ends != nullptr)
    put(run_ends.data(), args.run_ends, std::ssize(run_ends) * static_cast<int64_t>(sizeof(int)));
  return {};
}

}  // namespace primerl::cuda
