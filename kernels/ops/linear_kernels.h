/// The row-invariant product; see ops.h for its shapes and its order of additions. Compiled once
/// per instruction set.
///
/// A tile is a few rows times a few panels, its sums in registers: 6 rows of one panel are 12
/// vectors of sums, 2 of weights and 1 of x, of AVX2's 16 registers. One row takes four panels at
/// a time, because a chain of additions waits four cycles for each: eight chains hide that. No tile
/// changes the order of any sum.
#pragma once

#include "kernels/ops/lanes.h"
#include "kernels/ops/ops.h"

namespace primerl::PRIMERL_OPS_TARGET {

constexpr int64_t kRowsOfTile = 6;
/// Rows whose x of one block stays in the L2 cache (370 KB) while all panels pass. It is copied for
/// that: rows that are a power of two apart would share a few of the cache's sets.
constexpr int64_t kRowsOfPass = 480;
/// With fewer rows than this, all of them take a few panels before the next, so that the weights
/// come from memory once.
constexpr int64_t kRowsOfManyTiles = 48, kPanelsOfFewRows = 4;
/// From so many panels on the copy pays for itself.
constexpr int64_t kPanelsForCopy = 8;

static_assert(kLinearPanel == 2 * kLanes);

static void pack_linear(const PackLinearArgs& args) {
  const int64_t num_panels = (args.columns + kLinearPanel - 1) / kLinearPanel;
  for (int64_t panel = 0; panel < num_panels; ++panel) {
    float* to = args.packed + panel * args.terms * kLinearPanel;
    for (int64_t lane = 0; lane < kLinearPanel; ++lane) {
      const int64_t column = panel * kLinearPanel + lane;
      const float* from = args.weight + column * args.column_stride;
      if (column < args.columns)
        for (int64_t k = 0; k < args.terms; ++k)
          to[k * kLinearPanel + lane] = from[k * args.term_stride];
      else
        for (int64_t k = 0; k < args.terms; ++k) to[k * kLinearPanel + lane] = 0;
    }
  }
}

/// What a tile of one block needs.
struct LinearTile {
  const float* x = nullptr;  // of the first row and the first term, or a copy (copy_tiles())
  int64_t x_stride = 0;
  const float* packed = nullptr;  // of the first panel and the first term
  int64_t panel_stride = 0;       // floats from one panel to the next
  int64_t count = 0;              // terms
};

template <int kRows, int kPanels, bool kIsCopy>
PRIMERL_INLINE void multiply(const LinearTile& tile, Lanes (&sums)[kRows][kPanels][2]) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) sums[r][p][0] = sums[r][p][1] = spread(0);
  const float* weights = tile.packed;
  for (int64_t k = 0; k < tile.count; ++k, weights += kLinearPanel) {
    Lanes w[kPanels][2];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      w[p][0] = load(weights + p * tile.panel_stride);
      w[p][1] = load(weights + p * tile.panel_stride + kLanes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Lanes x = spread(kIsCopy ? tile.x[k * kRows + r] : tile.x[r * tile.x_stride + k]);
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        sums[r][p][0] += x * w[p][0];
        sums[r][p][1] += x * w[p][1];
      }
    }
  }
}

PRIMERL_INLINE Lanes load_some(const float* from, int64_t count) {
  if (count >= kLanes) return load(from);
  return load_part(from, count > 0 ? count : 0, 0);
}
PRIMERL_INLINE void store_some(float* to, Lanes value, int64_t count) {
  if (count >= kLanes) return store(to, value);
  store_part(to, value, count > 0 ? count : 0);
}

/// Adds the sum of a block to y, or to what y begins with.
PRIMERL_INLINE void add_block(const LinearRowsArgs& args, int64_t row, int64_t column,
                              bool is_first, Lanes sum) {
  const int64_t count = args.columns - column;
  if (count <= 0) return;
  float* y = args.y + row * args.y_stride + column;
  Lanes total = spread(0);
  if (!is_first) {
    total = load_some(y, count);
  } else {
    if (args.residual != nullptr)
      total = load_some(args.residual + row * args.residual_stride + column, count);
    if (args.bias != nullptr) total += load_some(args.bias + column, count);
  }
  store_some(y, total + sum, count);
}

/// `copy`: x of the tile as copy_tiles() leaves it, or null.
template <int kRows, int kPanels, bool kIsCopy = false>
static void linear_tile(const LinearRowsArgs& args, int64_t row, int64_t panel, int64_t term,
                        int64_t count, const float* copy = nullptr) {
  LinearTile tile;
  tile.x = kIsCopy ? copy : args.x + row * args.x_stride + term;
  tile.x_stride = args.x_stride;
  tile.packed = args.packed + (panel * args.terms + term) * kLinearPanel;
  tile.panel_stride = args.terms * kLinearPanel;
  tile.count = count;
  Lanes sums[kRows][kPanels][2];
  multiply<kRows, kPanels, kIsCopy>(tile, sums);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half)
        add_block(args, row + r, (panel + p) * kLinearPanel + half * kLanes, term == 0,
                  sums[r][p][half]);
}

/// All blocks of some rows, panel by panel: with few rows the weights are read in long runs.
template <int kRows, int kPanels>
static void linear_panels(const LinearRowsArgs& args, int64_t row) {
  int64_t panel = args.panel_begin;
  const auto all_blocks = [&](auto tile) {
    int64_t term = 0;
    do {
      const int64_t left = args.terms - term;
      tile(args, row, panel, term, left < kLinearBlock ? left : kLinearBlock, nullptr);
      term += kLinearBlock;
    } while (term < args.terms);
  };
  for (; panel + kPanels <= args.panel_end; panel += kPanels)
    all_blocks(linear_tile<kRows, kPanels>);
  for (; panel < args.panel_end; ++panel) all_blocks(linear_tile<kRows, 1>);
}

/// The last rows, fewer than a tile.
static void linear_rest(const LinearRowsArgs& args, int64_t row, int64_t num_rows) {
  switch (num_rows) {
    case 1:
      return linear_panels<1, 4>(args, row);
    case 2:
      return linear_panels<2, 2>(args, row);
    case 3:
      return linear_panels<3, 1>(args, row);
    case 4:
      return linear_panels<4, 1>(args, row);
    case 5:
      return linear_panels<5, 1>(args, row);
    default:
      return;
  }
}

/// x of whole tiles, term by term: [tiles, count, kRowsOfTile].
static void copy_tiles(const LinearRowsArgs& args, int64_t first, int64_t end, int64_t term,
                       int64_t count, float* to) {
  for (int64_t row = first; row < end; row += kRowsOfTile, to += count * kRowsOfTile)
    for (int64_t r = 0; r < kRowsOfTile; ++r) {
      const float* x = args.x + (row + r) * args.x_stride + term;
      for (int64_t k = 0; k < count; ++k) to[k * kRowsOfTile + r] = x[k];
    }
}

static void linear_tiles(const LinearRowsArgs& args, int64_t first, int64_t end, int64_t term,
                         int64_t count) {
  alignas(64) static thread_local float copied[kRowsOfPass * kLinearBlock];
  const bool is_copied =
      end - first > kRowsOfTile && args.panel_end - args.panel_begin >= kPanelsForCopy;
  if (is_copied) copy_tiles(args, first, end, term, count, copied);
  for (int64_t panel = args.panel_begin; panel < args.panel_end; ++panel) {
    const float* copy = copied;
    for (int64_t row = first; row < end; row += kRowsOfTile, copy += count * kRowsOfTile) {
      if (is_copied)
        linear_tile<kRowsOfTile, 1, true>(args, row, panel, term, count, copy);
      else
        linear_tile<kRowsOfTile, 1>(args, row, panel, term, count);
    }
  }
}

static void linear_passes(const LinearRowsArgs& args) {
  const int64_t whole = args.rows - args.rows % kRowsOfTile;
  for (int64_t first = 0; first < whole; first += kRowsOfPass) {
    const int64_t end = whole - first < kRowsOfPass ? whole : first + kRowsOfPass;
    int64_t term = 0;
    do {
      const int64_t left = args.terms - term;
      linear_tiles(args, first, end, term, left < kLinearBlock ? left : kLinearBlock);
      term += kLinearBlock;
    } while (term < args.terms);
  }
  linear_rest(args, whole, args.rows - whole);
}

static void linear_rows(const LinearRowsArgs& args) {
  const bool are_few = args.rows > kRowsOfTile && args.rows < kRowsOfManyTiles;
  if (!are_few) return linear_passes(args);
  LinearRowsArgs part = args;
  for (int64_t panel = args.panel_begin; panel < args.panel_end; panel += kPanelsOfFewRows) {
    const int64_t left = args.panel_end - panel;
    part.panel_begin = panel;
    part.panel_end = panel + (left < kPanelsOfFewRows ? left : kPanelsOfFewRows);
    linear_passes(part);
  }
}

}  // namespace primerl::PRIMERL_OPS_TARGET
