// Compiled with -mamx-tile -mamx-bf16 and AVX-512 where the target is x86-64; see CMakeLists.txt.
//
// linear_bf16 by AMX: a tile of 16 rows, or of 16 columns, times 32 terms. Two by two tiles of sums
// share the tiles that they read. A tile of sums starts with the values of y; edges go through a
// copy of 16 x 16. Tiles of x are copied once for all panels, each in 1 KB.
#define PRIMERL_OPS_TARGET amx
#include <immintrin.h>

#include "kernels/ops/bf16_packing.h"

namespace primerl {
namespace PRIMERL_OPS_TARGET {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileNumbers = kTileRows * kBf16Chunk;  // 1 KB
constexpr int64_t kTermsOfBlock = 512;
/// x of a pass stays in the L2 cache, with the weights of some panels.
constexpr int64_t kNumbersOfPass = int64_t{1} << 18;
constexpr int64_t kNumbersOfPanels = int64_t{1} << 17;
constexpr int64_t kPanelsMax = 64;  // of a group
constexpr int kPanelsOfBlock = 2;
static_assert(kTermsOfBlock % kBf16Chunk == 0 && kLinearPanel == kTileRows);
static_assert(kNumbersOfPanels % (2 * kTermsOfBlock * kLinearPanel) == 0, "pairs of panels");

struct Copies {
  alignas(64) uint16_t x[kNumbersOfPass];
  alignas(64) uint16_t weights[kNumbersOfPanels];
  alignas(64) float sums[2 * kPanelsOfBlock][kTileRows * kLinearPanel];
};

/// 16 rows of 16 pairs of bf16 numbers.
struct Pairs {
  __m512i rows[kTileRows];
};

struct TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_of_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

__mmask16 first_lanes(int64_t count) {
  if (count <= 0) return 0;
  return static_cast<__mmask16>(count >= 16 ? 0xffff : (1U << count) - 1U);
}

/// Transposes 16 x 16 pairs.
inline void transpose(Pairs& pairs) {
  __m512i a[16], *rows = pairs.rows;
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 16; i += 8)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      a[i + j] = _mm512_shuffle_i32x4(rows[i + j], rows[i + j + 4], 0x88);
      a[i + j + 4] = _mm512_shuffle_i32x4(rows[i + j], rows[i + j + 4], 0xdd);
    }
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    rows[j] = _mm512_shuffle_i32x4(a[j], a[j + 8], 0x88);
    rows[j + 8] = _mm512_shuffle_i32x4(a[j], a[j + 8], 0xdd);
  }
}

/// The numbers of row r and term k: from[r * row_stride + k * term_stride].
struct Numbers {
  const float* from = nullptr;
  int64_t row_stride = 0;
  int64_t term_stride = 0;
};

__m512i rounded(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

/// Row r of the result has the pairs of terms of row r.
inline void pairs_by_row(const Numbers& numbers, int64_t rows, int64_t terms, Pairs& pairs) {
  const __mmask16 low = first_lanes(terms), high = first_lanes(terms - 16);
  const float* from = numbers.from;
#pragma GCC unroll 16
  for (int64_t r = 0; r < kTileRows; ++r, from += numbers.row_stride)
    pairs.rows[r] =
        r < rows ? rounded(_mm512_maskz_loadu_ps(low, from), _mm512_maskz_loadu_ps(high, from + 16))
                 : _mm512_setzero_si512();
}

/// Row p of the result has pair p of each row. Rows are adjacent in memory.
inline void pairs_by_term(const Numbers& numbers, int64_t rows, int64_t terms, Pairs& pairs) {
  const __mmask16 lanes = first_lanes(rows);
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const float* from = numbers.from;
#pragma GCC unroll 16
  for (int64_t p = 0; p < kTileRows; ++p, from += 2 * numbers.term_stride) {
    const __m512 even = _mm512_maskz_loadu_ps(2 * p < terms ? lanes : 0, from);
    const __m512 odd =
        _mm512_maskz_loadu_ps(2 * p + 1 < terms ? lanes : 0, from + numbers.term_stride);
    pairs.rows[p] = _mm512_permutexvar_epi16(order, rounded(even, odd));
  }
}

/// Any strides.
inline void pairs_by_number(const Numbers& numbers, int64_t rows, int64_t terms, Pairs& pairs) {
  alignas(64) float copy[kTileRows][kBf16Chunk] = {};
  for (int64_t r = 0; r < rows && r < kTileRows; ++r)
    for (int64_t k = 0; k < terms && k < kBf16Chunk; ++k)
      copy[r][k] = numbers.from[r * numbers.row_stride + k * numbers.term_stride];
  pairs_by_row({copy[0], kBf16Chunk, 1}, kTileRows, kBf16Chunk, pairs);
}

inline void store_pairs(const Pairs& pairs, uint16_t* to) {
#pragma GCC unroll 16
  for (int64_t r = 0; r < kTileRows; ++r) _mm512_store_si512(to + r * kBf16Chunk, pairs.rows[r]);
}

/// A tile of x, whose rows have pairs of terms, or of weights, whose rows are pairs.
inline void pack_tile(const Numbers& numbers, int64_t rows, int64_t terms, bool is_x,
                      uint16_t* to) {
  Pairs pairs;
  if (numbers.term_stride == 1) {
    pairs_by_row(numbers, rows, terms, pairs);
    if (!is_x) transpose(pairs);
  } else if (numbers.row_stride == 1) {
    pairs_by_term(numbers, rows, terms, pairs);
    if (is_x) transpose(pairs);
  } else {
    pairs_by_number(numbers, rows, terms, pairs);
    if (!is_x) transpose(pairs);
  }
  store_pairs(pairs, to);
}

/// 32 terms of a panel, from two panels of the transposed GEMM whose columns are these terms.
inline void transpose_tile(const LinearRowsArgs& args, int64_t column, int64_t term, uint16_t* to) {
  const int64_t padded = padded_terms(args.columns), step = kLinearPanel * padded;
  const uint16_t* first =
      args.packed_bf16_transposed + term / kLinearPanel * step + column * kLinearPanel;
  // The last chunk of terms may have one panel only.
  const bool has_second = term + kLinearPanel < args.terms;
  const __m512i words =
      _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26,
                       24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd_words = _mm512_add_epi16(words, _mm512_set1_epi16(1));
  Pairs pairs;
#pragma GCC unroll 8
  for (int64_t q = 0; q < kTileRows / 2; ++q) {
    const __m512i low = _mm512_loadu_si512(first + q * 2 * kLinearPanel);
    const __m512i high = has_second ? _mm512_loadu_si512(first + step + q * 2 * kLinearPanel)
                                    : _mm512_setzero_si512();
    pairs.rows[2 * q] = _mm512_permutex2var_epi16(low, words, high);
    pairs.rows[2 * q + 1] = _mm512_permutex2var_epi16(low, odd_words, high);
  }
  transpose(pairs);
  store_pairs(pairs, to);
}

/// Part of a GEMM: rows [first, end), terms [term, term + count).
struct Pass {
  int64_t first = 0, end = 0;
  int64_t term = 0, count = 0;
  int64_t chunks() const { return (count + kBf16Chunk - 1) / kBf16Chunk; }
};

void copy_x(const LinearRowsArgs& args, const Pass& pass, uint16_t* to) {
  for (int64_t row = pass.first; row < pass.end; row += kTileRows)
    for (int64_t k = 0; k < pass.count; k += kBf16Chunk, to += kTileNumbers)
      pack_tile({args.x + row * args.x_stride + (pass.term + k) * args.x_term_stride, args.x_stride,
                 args.x_term_stride},
                pass.end - row, pass.count - k, true, to);
}

/// The weights of one panel: packed already, or packed into `copy`.
const uint16_t* weights_of(const LinearRowsArgs& args, const Pass& pass, int64_t panel,
                           uint16_t* copy) {
  const int64_t column = panel * kLinearPanel;
  if (args.packed_bf16 != nullptr)
    return args.packed_bf16 + column * padded_terms(args.terms) + pass.term * kLinearPanel;
  uint16_t* to = copy;
  for (int64_t k = 0; k < pass.count; k += kBf16Chunk, to += kTileNumbers) {
    const int64_t term = pass.term + k;
    if (args.packed_bf16_transposed != nullptr) {
      transpose_tile(args, column, term, to);
      continue;
    }
    const LinearWeights& from = args.weights;
    pack_tile({from.weight + column * from.column_stride + term * from.term_stride,
               from.column_stride, from.term_stride},
              args.columns - column, pass.count - k, false, to);
  }
  return copy;
}

/// The memory that a tile of sums is read from and written to: y, or a copy at an edge.
struct Sums {
  const float* start = nullptr;  // null: 0
  int64_t start_stride = 0;
  float* end = nullptr;
  int64_t end_stride = 0;
};

/// y of a tile, or its copy; `is_first`: its residual, if it has no bias (start_with_bias()).
Sums sums_of(const LinearRowsArgs& args, int64_t rows, int64_t row, int64_t column, bool is_first,
             float* copy) {
  Sums sums;
  sums.end = args.y + row * args.y_stride + column;
  sums.end_stride = args.y_stride;
  sums.start = sums.end;
  sums.start_stride = args.y_stride;
  if (is_first && args.bias == nullptr) {
    sums.start =
        args.residual == nullptr ? nullptr : args.residual + row * args.residual_stride + column;
    sums.start_stride = args.residual_stride;
  }
  const int64_t columns = args.columns - column;
  if (rows >= kTileRows && columns >= kLinearPanel) return sums;
  const __mmask16 lanes = first_lanes(columns);
  for (int64_t r = 0; r < kTileRows; ++r)
    _mm512_store_ps(copy + r * kLinearPanel,
                    r < rows && sums.start != nullptr
                        ? _mm512_maskz_loadu_ps(lanes, sums.start + r * sums.start_stride)
                        : _mm512_setzero_ps());
  return {copy, kLinearPanel, copy, kLinearPanel};
}

/// Copies the sums of an edge to y.
void finish(const LinearRowsArgs& args, int64_t rows, int64_t row, int64_t column,
            const float* sums, const float* copy) {
  if (sums != copy) return;
  const __mmask16 lanes = first_lanes(args.columns - column);
  for (int64_t r = 0; r < rows && r < kTileRows; ++r)
    _mm512_mask_storeu_ps(args.y + (row + r) * args.y_stride + column, lanes,
                          _mm512_load_ps(copy + r * kLinearPanel));
}

// The compiler does not know that tile instructions read memory.
#define PRIMERL_MEMORY_IS_WRITTEN() __asm__ volatile("" ::: "memory")
#define PRIMERL_START(tile, sums)                                                                 \
  do {                                                                                            \
    if ((sums).start != nullptr)                                                                  \
      _tile_loadd(tile, (sums).start, static_cast<int64_t>(sizeof(float)) * (sums).start_stride); \
    else                                                                                          \
      _tile_zero(tile);                                                                           \
  } while (false)
#define PRIMERL_END(tile, sums) \
  _tile_stored(tile, (sums).end, static_cast<int64_t>(sizeof(float)) * (sums).end_stride)

/// kRowTiles times kPanels tiles of sums, numbered 2 * row tile + panel.
template <int kRowTiles, int kPanels>
inline void multiply(const Pass& pass, const Sums (&sums)[4], const uint16_t* x,
                     const uint16_t* const* weights) {
  constexpr bool kTwoRows = kRowTiles > 1, kTwoPanels = kPanels > 1;
  const int64_t chunks = pass.chunks();
  const uint16_t* next = x + chunks * kTileNumbers;
  PRIMERL_MEMORY_IS_WRITTEN();
  PRIMERL_START(0, sums[0]);
  if constexpr (kTwoPanels) PRIMERL_START(1, sums[1]);
  if constexpr (kTwoRows) PRIMERL_START(2, sums[2]);
  if constexpr (kTwoRows && kTwoPanels) PRIMERL_START(3, sums[3]);
  for (int64_t at = 0; at < chunks * kTileNumbers; at += kTileNumbers) {
    _tile_loadd(4, x + at, 64);
    _tile_loadd(6, weights[0] + at, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kTwoPanels) {
      _tile_loadd(7, weights[1] + at, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kTwoRows) {
      _tile_loadd(5, next + at, 64);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kTwoPanels) _tile_dpbf16ps(3, 5, 7);
    }
  }
  PRIMERL_END(0, sums[0]);
  if constexpr (kTwoPanels) PRIMERL_END(1, sums[1]);
  if constexpr (kTwoRows) PRIMERL_END(2, sums[2]);
  if constexpr (kTwoRows && kTwoPanels) PRIMERL_END(3, sums[3]);
  PRIMERL_MEMORY_IS_WRITTEN();
}

template <int kRowTiles, int kPanels>
void compute_tiles(const LinearRowsArgs& args, const Pass& pass, int64_t row, int64_t panel,
                   const uint16_t* const* weights, Copies& copies) {
  Sums sums[4];
  const auto rows_of = [&](int tile) { return pass.end - row - tile * kTileRows; };
  for (int r = 0; r < kRowTiles; ++r)
    for (int p = 0; p < kPanels; ++p)
      sums[2 * r + p] = sums_of(args, rows_of(r), row + r * kTileRows, (panel + p) * kLinearPanel,
                                pass.term == 0, copies.sums[2 * r + p]);
  multiply<kRowTiles, kPanels>(pass, sums,
                               copies.x + (row - pass.first) * pass.chunks() * kBf16Chunk, weights);
  for (int r = 0; r < kRowTiles; ++r)
    for (int p = 0; p < kPanels; ++p)
      finish(args, rows_of(r), row + r * kTileRows, (panel + p) * kLinearPanel, sums[2 * r + p].end,
             copies.sums[2 * r + p]);
}

/// Panels [panel, end), a group. Rows are the outer loop, so that y is written row by row.
void compute_group(const LinearRowsArgs& args, const Pass& pass, int64_t panel, int64_t end,
                   Copies& copies) {
  const uint16_t* weights[kPanelsMax] = {};
  for (int64_t p = 0; panel + p < end; ++p)
    weights[p] =
        weights_of(args, pass, panel + p, copies.weights + p * pass.chunks() * kTileNumbers);
  for (int64_t row = pass.first; row < pass.end; row += 2 * kTileRows) {
    const bool has_two = row + kTileRows < pass.end;
    int64_t p = 0;
    for (; panel + p + 1 < end; p += 2)
      has_two ? compute_tiles<2, 2>(args, pass, row, panel + p, weights + p, copies)
              : compute_tiles<1, 2>(args, pass, row, panel + p, weights + p, copies);
    if (panel + p < end)
      has_two ? compute_tiles<2, 1>(args, pass, row, panel + p, weights + p, copies)
              : compute_tiles<1, 1>(args, pass, row, panel + p, weights + p, copies);
  }
}

/// y = residual + bias of these panels, before any sum; without terms that is all.
void start_with_bias(const LinearRowsArgs& args) {
  const int64_t end = args.panel_end * kLinearPanel;
  for (int64_t row = 0; row < args.rows; ++row)
    for (int64_t column = args.panel_begin * kLinearPanel; column < end; column += kLinearPanel) {
      const __mmask16 lanes = first_lanes(args.columns - column);
      const float* residual = args.residual + row * args.residual_stride + column;
      __m512 start =
          args.residual == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes, residual);
      if (args.bias != nullptr) {
        const __m512 bias = _mm512_maskz_loadu_ps(lanes, args.bias + column);
        start = args.residual == nullptr ? bias : _mm512_add_ps(start, bias);
      }
      _mm512_mask_storeu_ps(args.y + row * args.y_stride + column, lanes, start);
    }
}

void compute(const LinearRowsArgs& args) {
  static_assert(sizeof(Copies) <= kThreadScratchBytes);
  auto& copies = *static_cast<Copies*>(thread_scratch());
  if (args.bias != nullptr || args.terms == 0) start_with_bias(args);
  const int64_t terms = args.terms < kTermsOfBlock ? args.terms : kTermsOfBlock;
  if (terms == 0) return;
  const int64_t rows_of_pass =
      kNumbersOfPass / padded_terms(terms) / (2 * kTileRows) * (2 * kTileRows);
  for (int64_t first = 0; first < args.rows; first += rows_of_pass) {
    Pass pass{.first = first,
              .end = args.rows - first < rows_of_pass ? args.rows : first + rows_of_pass};
    for (; pass.term < args.terms; pass.term += kTermsOfBlock) {
      const int64_t left = args.terms - pass.term;
      pass.count = left < kTermsOfBlock ? left : kTermsOfBlock;
      copy_x(args, pass, copies.x);
      int64_t panels = kNumbersOfPanels / (pass.chunks() * kTileNumbers);
      if (panels > kPanelsMax) panels = kPanelsMax;
      for (int64_t panel = args.panel_begin; panel < args.panel_end; panel += panels)
        compute_group(args, pass, panel,
                      panel + panels < args.panel_end ? panel + panels : args.panel_end, copies);
    }
  }
}

}  // namespace
}  // namespace PRIMERL_OPS_TARGET

void amx_linear_bf16(const LinearRowsArgs& args);
void amx_linear_bf16(const LinearRowsArgs& args) {
  static constexpr amx::TileConfig kConfig;
  const unsigned int mode = _mm_getcsr();
  _mm_setcsr(mode | amx::kDenormalsAreZero);
  PRIMERL_MEMORY_IS_WRITTEN();
  _tile_loadconfig(&kConfig);
  amx::compute(args);
  _tile_release();
  _mm_setcsr(mode);
}

}  // namespace primerl
