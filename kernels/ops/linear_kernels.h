/// The row-invariant GEMM; see ops.h for its shapes and its order of additions. Compiled once per
/// instruction set.
///
/// A tile is a few rows times a few panels, with its sums in registers. 6 rows of one panel use 12
/// vectors for sums, 2 for weights and 1 for x, of AVX2's 16 registers. With AVX-512 a panel is one
/// vector, and 6 rows of two panels use 12 sums; weights that are not packed are packed by tile.
/// One row is computed with four panels at a time: each addition of a chain waits four cycles, and
/// eight chains hide that. No tile changes the order of any sum.
#pragma once

#if defined(PRIMERL_OPS_AVX512)
#include <immintrin.h>
#endif

#include "kernels/ops/lanes.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/panel_kernels.h"

namespace primerl::PRIMERL_OPS_TARGET {

constexpr int64_t kRowsOfTile = 6;
/// Rows whose x of one block stays in the L2 cache (470 KB) while all panels are computed. x is
/// copied for that: rows a power of two apart would share a few of the cache's sets.
constexpr int64_t kRowsOfPass = 612;
/// With fewer rows than this, a few panels are computed for all rows before the next panels, so
/// that the weights are read from memory once.
constexpr int64_t kRowsOfManyTiles = 48, kPanelsOfFewRows = 4;
/// From this many panels on the copy pays off.
constexpr int64_t kPanelsForCopy = 8;

static void pack_linear(const PackLinearArgs& args) {
  for (int64_t column = args.column_begin; column < args.column_end;) {
    const int64_t panel = column / kLinearPanel, lane = column % kLinearPanel;
    const int64_t left = args.column_end - column, room = kLinearPanel - lane;
    const int64_t lanes = left < room ? left : room;
    LinearWeights from = args.weights;
    from.weight += (column - args.column_begin) * from.column_stride;
    copy_panel(from, lanes, args.terms, args.packed + panel * args.terms * kLinearPanel + lane);
    column += lanes;
  }
}

/// The input of a tile of one block.
struct LinearTile {
  const float* x = nullptr;  // at the first row and the first term, or a copy (copy_tiles())
  int64_t x_stride = 0;
  const float* packed = nullptr;  // at the first panel and the first term
  int64_t panel_stride = 0;       // floats from one panel to the next
  int64_t count = 0;              // terms
};

#if defined(PRIMERL_OPS_AVX512)

/// One panel as an AVX-512 vector. Multiply-add is explicit: a compiler may leave a chain of
/// 16-lane vectors unfused, and then the bits would depend on the tile.
using PanelLanes = __m512;
static_assert(sizeof(PanelLanes) == kLinearPanel * sizeof(float));
/// 12 chains of additions hide their latency, 6 do not.
constexpr int kPanelsOfTile = 2;

template <int kRows, int kPanels, bool kIsCopy>
PRIMERL_INLINE void multiply(const LinearTile& tile, Lanes (&sums)[kRows][kPanels][2]) {
  PanelLanes wide[kRows][kPanels];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) wide[r][p] = _mm512_setzero_ps();
  const float* weights = tile.packed;
  for (int64_t k = 0; k < tile.count; ++k, weights += kLinearPanel) {
    PanelLanes w[kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) w[p] = _mm512_loadu_ps(weights + p * tile.panel_stride);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const PanelLanes x =
          _mm512_set1_ps(kIsCopy ? tile.x[k * kRows + r] : tile.x[r * tile.x_stride + k]);
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) wide[r][p] = _mm512_fmadd_ps(x, w[p], wide[r][p]);
    }
  }
  __builtin_memcpy(&sums, &wide, sizeof(wide));
}

#else

constexpr int kPanelsOfTile = 1;

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

#endif

PRIMERL_INLINE Lanes load_some(const float* from, int64_t count) {
  if (count >= kLanes) return load(from);
  return load_part(from, count > 0 ? count : 0, 0);
}
PRIMERL_INLINE void store_some(float* to, Lanes value, int64_t count) {
  if (count >= kLanes) return store(to, value);
  store_part(to, value, count > 0 ? count : 0);
}

/// Adds the sum of a block to y, or to the initial value of y.
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

/// Terms [term, term + count) of some panels from `panel` on: the location of their weights.
struct LinearBlock {
  int64_t panel = 0;
  int64_t term = 0;
  int64_t count = 0;
  const float* packed = nullptr;  // at the first panel and the first term
  int64_t panel_stride = 0;       // floats from one panel to the next
};

/// y of a tile comes from a far cache: it arrives while the sums of the block are computed.
template <int kRows, int kPanels>
PRIMERL_INLINE void prefetch_tile(const LinearRowsArgs& args, int64_t row, int64_t panel) {
  constexpr int64_t kFloatsOfLine = 16;
  const float* y = args.y + row * args.y_stride + panel * kLinearPanel;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r, y += args.y_stride)
#pragma GCC unroll 4
    for (int64_t i = 0; i < kPanels * kLinearPanel; i += kFloatsOfLine)
      __builtin_prefetch(y + i, 1);
}

/// `copy`: the tile's x as written by copy_tiles(), or null.
template <int kRows, int kPanels, bool kIsCopy = false>
static void linear_tile(const LinearRowsArgs& args, int64_t row, const LinearBlock& block,
                        const float* copy = nullptr) {
  LinearTile tile;
  const int64_t panel = block.panel, term = block.term;
  tile.x = kIsCopy ? copy : args.x + row * args.x_stride + term;
  tile.x_stride = args.x_stride;
  tile.packed = block.packed;
  tile.panel_stride = block.panel_stride;
  tile.count = block.count;
  if (term > 0) prefetch_tile<kRows, kPanels>(args, row, panel);
  Lanes sums[kRows][kPanels][2];
  multiply<kRows, kPanels, kIsCopy>(tile, sums);
  const int64_t column = panel * kLinearPanel;
  const bool is_plain = args.residual == nullptr && args.bias == nullptr;
  if (column + kPanels * kLinearPanel <= args.columns && (term > 0 || is_plain)) {
    // The same, without a condition per vector.
    float* y = args.y + row * args.y_stride + column;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r, y += args.y_stride)
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          float* to = y + p * kLinearPanel + half * kLanes;
          store(to, (term > 0 ? load(to) : spread(0)) + sums[r][p][half]);
        }
    return;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half)
        add_block(args, row + r, column + p * kLinearPanel + half * kLanes, term == 0,
                  sums[r][p][half]);
}

/// Packs terms [term, term + count) of one panel.
PRIMERL_INLINE void pack_block(const LinearRowsArgs& args, int64_t panel, int64_t term,
                               int64_t count, float* to) {
  const int64_t column = panel * kLinearPanel, columns = args.columns - column;
  const int64_t lanes = columns < kLinearPanel ? columns : kLinearPanel;
  if (args.packed_transposed == nullptr) {
    LinearWeights from = args.weights;
    from.weight += column * from.column_stride + term * from.term_stride;
    return copy_panel(from, lanes, count, to);
  }
  // A panel of the transposed matrix has kLinearPanel of the terms of every column.
  const float* from = args.packed_transposed + (term * args.columns + column * kLinearPanel);
  for (int64_t k = 0; k < count; k += kLinearPanel, from += args.columns * kLinearPanel) {
    const int64_t some = count - k;
    copy_panel({from, kLinearPanel, 1}, lanes, some < kLinearPanel ? some : kLinearPanel,
               to + k * kLinearPanel);
  }
}

/// The weights of `num_panels` panels described by the args; packed into `room` if they are not
/// packed.
PRIMERL_INLINE LinearBlock block_of(const LinearRowsArgs& args, int64_t panel, int64_t term,
                                    float* room, int64_t num_panels = 1) {
  const int64_t left = args.terms - term, count = left < kLinearBlock ? left : kLinearBlock;
  if (args.packed != nullptr)
    return {panel, term, count, args.packed + (panel * args.terms + term) * kLinearPanel,
            args.terms * kLinearPanel};
  constexpr int64_t kStride = kLinearBlock * kLinearPanel;
  for (int64_t i = 0; i < num_panels; ++i)
    pack_block(args, panel + i, term, count, room + i * kStride);
  return {panel, term, count, room, kStride};
}

/// All blocks of some rows, panel by panel: with few rows this reads packed weights sequentially.
template <int kRows, int kPanels>
static void linear_panels(const LinearRowsArgs& args, int64_t row, float* room) {
  int64_t panel = args.panel_begin;
  const auto all_blocks = [&](auto tile) {
    for (int64_t term = 0; term < args.terms; term += kLinearBlock)
      tile(args, row, block_of(args, panel, term, room), nullptr);
  };
  if (args.packed != nullptr)
    for (; panel + kPanels <= args.panel_end; panel += kPanels)
      all_blocks(linear_tile<kRows, kPanels>);
  for (; panel < args.panel_end; ++panel) all_blocks(linear_tile<kRows, 1>);
}

/// The last rows, fewer than a tile; terms are adjacent in memory.
static void linear_rest(const LinearRowsArgs& args, int64_t row, int64_t num_rows, float* room) {
  switch (num_rows) {
    case 1:
      return linear_panels<1, 4>(args, row, room);
    case 2:
      return linear_panels<2, 2>(args, row, room);
    case 3:
      return linear_panels<3, 1>(args, row, room);
    case 4:
      return linear_panels<4, 1>(args, row, room);
    case 5:
      return linear_panels<5, 1>(args, row, room);
    default:
      return;
  }
}

/// Copies x of `num_rows` rows, term by term: to[k * num_rows + r].
PRIMERL_INLINE void copy_rows(const LinearRowsArgs& args, int64_t row, int64_t num_rows,
                              int64_t term, int64_t count, float* to) {
  const float* from = args.x + row * args.x_stride + term * args.x_term_stride;
  if (args.x_stride == 1) {
    for (int64_t k = 0; k < count; ++k)
      for (int64_t r = 0; r < num_rows; ++r)
        to[k * num_rows + r] = from[k * args.x_term_stride + r];
    return;
  }
  for (int64_t r = 0; r < num_rows; ++r, from += args.x_stride)
    for (int64_t k = 0; k < count; ++k) to[k * num_rows + r] = from[k * args.x_term_stride];
}

/// The same for a whole tile; writes up to two floats after its end.
PRIMERL_INLINE void copy_tile(const LinearRowsArgs& args, int64_t row, int64_t term, int64_t count,
                              float* to) {
  const float* from = args.x + row * args.x_stride + term * args.x_term_stride;
  if (args.x_stride == 1 && row + kLanes <= args.rows) {
    for (int64_t k = 0; k < count; ++k)
      store(to + k * kRowsOfTile, load(from + k * args.x_term_stride));
    return;
  }
  if (args.x_term_stride != 1) return copy_rows(args, row, kRowsOfTile, term, count, to);
  int64_t k = 0;
  for (; k + kLanes <= count; k += kLanes)
    transpose_square<kRowsOfTile>(from + k, args.x_stride, to + k * kRowsOfTile, kRowsOfTile);
  for (; k < count; ++k)
    for (int64_t r = 0; r < kRowsOfTile; ++r) to[k * kRowsOfTile + r] = from[r * args.x_stride + k];
}

/// The copies of a thread: x of some rows and weights of a block.
struct LinearCopies {
  alignas(64) float x[kRowsOfPass * kLinearBlock + kLanes];
  alignas(64) float weights[kPanelsOfTile * kLinearBlock * kLinearPanel];
};

static void linear_tiles(const LinearRowsArgs& args, int64_t first, int64_t end, int64_t term,
                         LinearCopies& copies) {
  const int64_t left = args.terms - term, count = left < kLinearBlock ? left : kLinearBlock;
  const bool is_copied =
      args.x_term_stride != 1 ||
      (end - first > kRowsOfTile && args.panel_end - args.panel_begin >= kPanelsForCopy);
  if (is_copied)
    for (int64_t row = first; row < end; row += kRowsOfTile)
      copy_tile(args, row, term, count, copies.x + (row - first) * count);
  const auto all_rows = [&](int64_t panel, int64_t num_panels, auto with_copy, auto without) {
    const LinearBlock block = block_of(args, panel, term, copies.weights, num_panels);
    const float* copy = copies.x;
    for (int64_t row = first; row < end; row += kRowsOfTile, copy += count * kRowsOfTile) {
      if (is_copied)
        with_copy(args, row, block, copy);
      else
        without(args, row, block, nullptr);
    }
  };
  int64_t panel = args.panel_begin;
  if (kPanelsOfTile > 1)
    for (; panel + kPanelsOfTile <= args.panel_end; panel += kPanelsOfTile)
      all_rows(panel, kPanelsOfTile, linear_tile<kRowsOfTile, kPanelsOfTile, true>,
               linear_tile<kRowsOfTile, kPanelsOfTile>);
  for (; panel < args.panel_end; ++panel)
    all_rows(panel, 1, linear_tile<kRowsOfTile, 1, true>, linear_tile<kRowsOfTile, 1>);
}

template <int kRows>
static void linear_copied_rest(const LinearRowsArgs& args, int64_t row, LinearCopies& copies) {
  for (int64_t term = 0; term < args.terms; term += kLinearBlock) {
    const int64_t left = args.terms - term;
    copy_rows(args, row, kRows, term, left < kLinearBlock ? left : kLinearBlock, copies.x);
    for (int64_t panel = args.panel_begin; panel < args.panel_end; ++panel)
      linear_tile<kRows, 1, true>(args, row, block_of(args, panel, term, copies.weights), copies.x);
  }
}

/// The last rows, where the terms of a row are not adjacent in memory.
static void linear_strided_rest(const LinearRowsArgs& args, int64_t row, int64_t num_rows,
                                LinearCopies& copies) {
  switch (num_rows) {
    case 1:
      return linear_copied_rest<1>(args, row, copies);
    case 2:
      return linear_copied_rest<2>(args, row, copies);
    case 3:
      return linear_copied_rest<3>(args, row, copies);
    case 4:
      return linear_copied_rest<4>(args, row, copies);
    case 5:
      return linear_copied_rest<5>(args, row, copies);
    default:
      return;
  }
}

static void linear_passes(const LinearRowsArgs& args, LinearCopies& copies) {
  const int64_t whole = args.rows - args.rows % kRowsOfTile;
  for (int64_t first = 0; first < whole; first += kRowsOfPass) {
    const int64_t end = whole - first < kRowsOfPass ? whole : first + kRowsOfPass;
    for (int64_t term = 0; term < args.terms; term += kLinearBlock)
      linear_tiles(args, first, end, term, copies);
  }
  if (args.x_term_stride == 1)
    linear_rest(args, whole, args.rows - whole, copies.weights);
  else
    linear_strided_rest(args, whole, args.rows - whole, copies);
}

/// y = residual + bias, if there are no terms.
static void linear_without_terms(const LinearRowsArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row)
    for (int64_t panel = args.panel_begin; panel < args.panel_end; ++panel)
      for (int64_t half = 0; half < 2; ++half)
        add_block(args, row, panel * kLinearPanel + half * kLanes, true, spread(0));
}

static void linear_rows(const LinearRowsArgs& args) {
  static_assert(sizeof(LinearCopies) <= kThreadScratchBytes);
  auto& copies = *static_cast<LinearCopies*>(thread_scratch());
  if (args.terms == 0) return linear_without_terms(args);
  const bool are_few = args.rows > kRowsOfTile && args.rows < kRowsOfManyTiles;
  if (!are_few || args.packed == nullptr) return linear_passes(args, copies);
  LinearRowsArgs part = args;
  for (int64_t panel = args.panel_begin; panel < args.panel_end; panel += kPanelsOfFewRows) {
    const int64_t left = args.panel_end - panel;
    part.panel_begin = panel;
    part.panel_end = panel + (left < kPanelsOfFewRows ? left : kPanelsOfFewRows);
    linear_passes(part, copies);
  }
}

}  // namespace primerl::PRIMERL_OPS_TARGET
