#include "tests/device/adapted_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "graph/base/random.h"

namespace primerl::cuda_test {
namespace {

using cuda::AdapterTile;
using cuda::AddAdaptersArgs;

constexpr std::array<int32_t, 8> kRanks = {16, 4, 64, 7, 0, 24, 8, 32};
constexpr int32_t kSlots = 2;

/// Tiles without an adapter have rows too; tiles without rows are empty.
std::vector<AdapterTile> tiles_of(int64_t rows, uint64_t seed, bool are_small) {
  std::vector<AdapterTile> tiles = {{}};
  RandomStream random(seed);
  for (int32_t first = 0; first < rows; first = tiles.back().first + tiles.back().rows) {
    const auto left = static_cast<uint64_t>(rows - first);
    AdapterTile tile{first, static_cast<int32_t>(1 + random.below(std::min<uint64_t>(left, 8)))};
    tile.rank = kRanks[random.below(kRanks.size())];
    tile.slot = static_cast<int32_t>(random.below(kSlots));
    tile.targets = static_cast<uint32_t>(random.below(8));
    tile.scaling = 0.5F + static_cast<float>(random.below(3));
    if (!are_small) {
      tiles.push_back(tile);
      continue;
    }
    const int32_t count = std::exchange(tile.rows, 1);
    for (int32_t i = 0; i < count; ++i, ++tile.first) tiles.push_back(tile);
  }
  tiles.emplace_back();
  return tiles;
}

std::vector<cuda::AdapterRow> rows_of(const std::vector<AdapterTile>& tiles, int64_t rows) {
  std::vector<cuda::AdapterRow> made(static_cast<size_t>(rows));
  for (const AdapterTile& tile : tiles)
    std::fill_n(made.begin() + tile.first, tile.rows,
                cuda::AdapterRow{tile.slot, tile.rank, tile.targets, tile.scaling});
  return made;
}

}  // namespace

int64_t AdaptedLinear::columns() const {
  int64_t all = 0;
  for (const int64_t width : widths) all += width;
  return all;
}

int64_t AdaptedLinear::slot_stride() const {
  int64_t all = 0;
  for (const int64_t width : widths) all += size_of(width);
  return cuda::kAdapterRowsRankMax * all;
}

AddAdaptersArgs AdaptedLinear::args(cuda::Type type) const {
  AddAdaptersArgs made;
  made.terms = terms;
  made.columns = columns();
  made.type = type;
  made.slot_stride = slot_stride();
  int64_t at = 0, column = 0;
  for (const int64_t width : widths) {
    const auto target = 1U << static_cast<unsigned>(made.num_parts);
    made.parts[made.num_parts++] = {column, width, at, at + terms, target};
    at += size_of(width);
    column += width;
  }
  return made;
}

Floats wanted_of_tiles(const AddAdaptersArgs& args, const std::vector<AdapterTile>& tiles,
                       const Floats& slots, const Floats& x, Floats before) {
  Floats y = std::move(before);
  for (const AdapterTile& tile : tiles)
    for (int i = 0; i < args.num_parts; ++i) {
      const cuda::AdapterPart& part = args.parts[i];
      if ((tile.targets & part.target) == 0) continue;
      const float* slot =
          slots.data() + tile.slot * args.slot_stride + tile.group * args.group_stride * tile.rank;
      const float *a = slot + part.a * tile.rank, *b = slot + part.b * tile.rank;
      for (int64_t row = tile.first; row < tile.first + tile.rows; ++row) {
        std::vector<double> u(static_cast<size_t>(tile.rank));
        for (int64_t r = 0; r < tile.rank; ++r)
          for (int64_t t = 0; t < args.terms; ++t)
            u[static_cast<size_t>(r)] +=
                double{a[r * args.terms + t]} * x[static_cast<size_t>(row * args.terms + t)];
        for (int64_t column = 0; column < part.columns; ++column) {
          double sum = 0;
          for (int64_t r = 0; r < tile.rank; ++r)
            sum += double{b[column * tile.rank + r]} * u[static_cast<size_t>(r)];
          y[static_cast<size_t>(row * args.columns + part.column + column)] +=
              static_cast<float>(tile.scaling * sum);
        }
      }
    }
  return y;
}

AdaptedRows::AdaptedRows(cuda::Type type, int64_t rows, const AdaptedLinear& linear, uint64_t seed,
                         Change change)
    : linear_(linear),
      tiles_(tiles_of(rows, mix(seed, 20), change.has_small_tiles)),
      rows_(rows_of(tiles_, rows)),
      type_(type),
      slots_([&] {
        const int64_t stride = linear_.slot_stride();
        Floats numbers = rounded(type, random_floats(kSlots * stride, mix(seed, 21), 0.1));
        if (change.broken_slot >= 0)
          std::fill_n(numbers.begin() + change.broken_slot * stride, stride, NAN);
        return numbers;
      }()),
      x_(rounded(type, random_floats(rows * linear_.terms, mix(seed, 22), 0.3))),
      on_slots_(type, slots_),
      on_x_(type, x_),
      on_tiles_(tiles_),
      on_rows_(rows_),
      lora_delta_([&] {
        cuda::LoraDelta made{linear_.args(type), rows, on_rows_.as<cuda::AdapterRow>()};
        made.of.num_tiles = std::ssize(tiles_);
        made.of.tiles = on_tiles_.as<AdapterTile>();
        made.of.slots = on_slots_.get();
        made.of.x = on_x_.get();
        // must change nothing
        made.of.next_size = linear_.slot_stride() / cuda::kAdapterRowsRankMax;
        return made;
      }()),
      u_(Floats(static_cast<size_t>(cuda::lora_delta_workspace(lora_delta_)), NAN)) {
  lora_delta_.of.workspace = u_.as<float>();
}

Floats AdaptedRows::sums() const {
  const int64_t count = lora_delta_.num_rows * linear_.columns();
  return wanted_of_tiles(linear_.args(type_), tiles_, slots_, x_,
                         Floats(static_cast<size_t>(count), 0));
}

bool AdaptedRows::has_slot(int64_t row, int32_t slot) const {
  const cuda::AdapterRow& of = rows_[static_cast<size_t>(row)];
  const uint32_t all = (1U << static_cast<unsigned>(lora_delta_.of.num_parts)) - 1;
  return of.slot == slot && of.rank > 0 && (of.targets & all) != 0;
}

}  // namespace primerl::cuda_test
