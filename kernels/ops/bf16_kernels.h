/// The GEMM of bf16 numbers without AMX: bf16.h has the order of additions and ops.h the shapes.
/// Compiled once per instruction set, with equal bits.
///
/// Numbers are expanded to floats: a term is exact, so fused multiply-adds give the bits of AMX
/// once denormals count as 0. On x86-64 with FMA the control register of the thread does that while
/// linear_bf16 runs; the baseline adds in double and rounds explicitly.
#pragma once

#if defined(__FMA__)
#include <immintrin.h>
#endif

#include "kernels/ops/bf16_packing.h"

namespace primerl::PRIMERL_OPS_TARGET {

#if defined(PRIMERL_OPS_AVX512)

using Bf16Sums = float __attribute__((vector_size(64)));
using Bf16Bits = uint32_t __attribute__((vector_size(64)));
constexpr int64_t kRowsOfBf16Tile = 8;

PRIMERL_INLINE Bf16Sums multiply_add_sums(float x, Bf16Sums w, Bf16Sums sum) {
  return (Bf16Sums)_mm512_fmadd_ps(_mm512_set1_ps(x), (__m512)w, (__m512)sum);
}
PRIMERL_INLINE Bf16Sums add_sums(Bf16Sums a, Bf16Sums b) { return a + b; }

#elif defined(__FMA__)

using Bf16Sums = Lanes;
using Bf16Bits = LaneBits;
constexpr int64_t kRowsOfBf16Tile = 4;

PRIMERL_INLINE Bf16Sums multiply_add_sums(float x, Bf16Sums w, Bf16Sums sum) {
  return multiply_add(spread(x), w, sum);
}
PRIMERL_INLINE Bf16Sums add_sums(Bf16Sums a, Bf16Sums b) { return a + b; }

#else

using Bf16Sums = Lanes;
using Bf16Bits = LaneBits;
using Doubles = double __attribute__((vector_size(64)));
constexpr int64_t kRowsOfBf16Tile = 4;

/// rounded_bf16_sum() of bf16.h.
PRIMERL_INLINE Lanes rounded_sum(Doubles sum) {
  constexpr double kRoundsToLeastNormal = 0x1.ffffffp-127;
  Lanes rounded;
  for (int i = 0; i < kLanes; ++i) {
    const double magnitude = sum[i] < 0 ? -sum[i] : sum[i];
    const float value = static_cast<float>(sum[i]);
    rounded[i] = magnitude < kRoundsToLeastNormal ? __builtin_copysignf(0.0F, value) : value;
  }
  return rounded;
}
PRIMERL_INLINE Doubles doubles_of(Lanes value) { return __builtin_convertvector(value, Doubles); }
PRIMERL_INLINE Bf16Sums multiply_add_sums(float x, Bf16Sums w, Bf16Sums sum) {
  return rounded_sum(doubles_of(spread(x)) * doubles_of(w) + doubles_of(sum));
}
PRIMERL_INLINE Bf16Sums add_sums(Bf16Sums a, Bf16Sums b) {
  return rounded_sum(doubles_of(without_denormals_of(a)) + doubles_of(without_denormals_of(b)));
}

#endif

constexpr int64_t kColumnsOfSums = sizeof(Bf16Sums) / sizeof(float);

struct Bf16Copies {
  alignas(64) float x[kRowsOfBf16Pass * kBf16Block];
  alignas(64) uint16_t weights[kBf16Block * kLinearPanel];
};

/// x of `rows` rows of a tile, rounded, as [padded terms, kRowsOfBf16Tile].
PRIMERL_INLINE void copy_bf16_rows(const LinearRowsArgs& args, int64_t row, int64_t rows,
                                   int64_t term, int64_t count, float* to) {
  const int64_t padded = padded_terms(count);
  for (int64_t r = 0; r < kRowsOfBf16Tile; ++r) {
    const float* from = args.x + (row + r) * args.x_stride + term * args.x_term_stride;
    int64_t k = 0;
    if (args.x_term_stride == 1 && r < rows)
      for (; k + kLanes <= count; k += kLanes) {
        const Lanes rounded = lanes_of(rounded_bf16_bits(bits_of(load(from + k))));
        for (int i = 0; i < kLanes; ++i) to[(k + i) * kRowsOfBf16Tile + r] = rounded[i];
      }
    for (; k < padded; ++k)
      to[k * kRowsOfBf16Tile + r] =
          r < rows && k < count ? rounded_bf16(from[k * args.x_term_stride]) : 0;
  }
}

PRIMERL_INLINE Bf16Sums load_sums(const float* from, int64_t count) {
  Bf16Sums sums = {};
  const int64_t bytes = (count < kColumnsOfSums ? count : kColumnsOfSums) * 4;
  if (bytes > 0) __builtin_memcpy(&sums, from, static_cast<size_t>(bytes));
  return sums;
}
PRIMERL_INLINE void store_sums(float* to, Bf16Sums sums, int64_t count) {
  const int64_t bytes = (count < kColumnsOfSums ? count : kColumnsOfSums) * 4;
  if (bytes > 0) __builtin_memcpy(to, &sums, static_cast<size_t>(bytes));
}

/// The sums before the first term of a block.
PRIMERL_INLINE Bf16Sums first_sums(const LinearRowsArgs& args, int64_t row, int64_t column,
                                   bool is_first) {
  const int64_t count = args.columns - column;
  if (!is_first) return load_sums(args.y + row * args.y_stride + column, count);
  Bf16Sums bias = {}, residual = {};
  if (args.residual != nullptr)
    residual = load_sums(args.residual + row * args.residual_stride + column, count);
  if (args.bias != nullptr) bias = load_sums(args.bias + column, count);
  if (args.residual == nullptr) return bias;
  return args.bias == nullptr ? residual : add_sums(residual, bias);
}

/// `kRows` rows times kColumnsOfSums columns of one panel; `weights` is at the first of them.
template <int64_t kRows>
PRIMERL_INLINE void bf16_tile(const LinearRowsArgs& args, int64_t row, int64_t column, int64_t term,
                              int64_t count, const float* x, const uint16_t* weights) {
  Bf16Sums sums[kRows];
  for (int64_t r = 0; r < kRows; ++r) sums[r] = first_sums(args, row + r, column, term == 0);
  for (int64_t first = 0; first < count; first += kBf16Chunk) {
    Bf16Sums even[kRows] = {}, odd[kRows] = {};
    for (int64_t k = 0; k < kBf16Chunk; k += 2) {
      Bf16Bits pairs;
      __builtin_memcpy(&pairs, weights + (first + k) * kLinearPanel, sizeof(pairs));
      Bf16Sums even_weights, odd_weights;
      const Bf16Bits low = pairs << 16, high = pairs & 0xffff0000U;
      __builtin_memcpy(&even_weights, &low, sizeof(low));
      __builtin_memcpy(&odd_weights, &high, sizeof(high));
      const float* from = x + (first + k) * kRowsOfBf16Tile;
#pragma GCC unroll 8
      for (int64_t r = 0; r < kRows; ++r) {
        even[r] = multiply_add_sums(from[r], even_weights, even[r]);
        odd[r] = multiply_add_sums(from[kRowsOfBf16Tile + r], odd_weights, odd[r]);
      }
    }
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) sums[r] = add_sums(sums[r], add_sums(even[r], odd[r]));
  }
  for (int64_t r = 0; r < kRows; ++r)
    store_sums(args.y + (row + r) * args.y_stride + column, sums[r], args.columns - column);
}

/// One panel of a block, for all rows of a pass.
PRIMERL_INLINE void bf16_panel(const LinearRowsArgs& args, int64_t first, int64_t end,
                               int64_t panel, int64_t term, int64_t count, const float* x,
                               const uint16_t* weights) {
  const int64_t step = padded_terms(count) * kRowsOfBf16Tile;
  for (int64_t row = first; row < end; row += kRowsOfBf16Tile, x += step)
    for (int64_t lane = 0; lane < kLinearPanel; lane += kColumnsOfSums) {
      const int64_t column = panel * kLinearPanel + lane;
      if (column >= args.columns) break;
      const uint16_t* from = weights + 2 * lane;
      if (end - row >= kRowsOfBf16Tile) {
        bf16_tile<kRowsOfBf16Tile>(args, row, column, term, count, x, from);
        continue;
      }
      for (int64_t r = 0; row + r < end; ++r)
        bf16_tile<1>(args, row + r, column, term, count, x + r, from);
    }
}

__attribute__((noinline)) static void bf16_passes(const LinearRowsArgs& args) {
  static_assert(sizeof(Bf16Copies) <= kThreadScratchBytes);
  auto& copies = *static_cast<Bf16Copies*>(thread_scratch());
  for (int64_t first = 0; first < args.rows; first += kRowsOfBf16Pass) {
    const int64_t left = args.rows - first;
    const int64_t end = first + (left < kRowsOfBf16Pass ? left : kRowsOfBf16Pass);
    int64_t term = 0;
    do {
      const int64_t rest = args.terms - term, count = rest < kBf16Block ? rest : kBf16Block;
      float* x = copies.x;
      for (int64_t row = first; row < end; row += kRowsOfBf16Tile) {
        const int64_t rows = end - row < kRowsOfBf16Tile ? end - row : kRowsOfBf16Tile;
        copy_bf16_rows(args, row, rows, term, count, x);
        x += padded_terms(count) * kRowsOfBf16Tile;
      }
      for (int64_t panel = args.panel_begin; panel < args.panel_end; ++panel)
        bf16_panel(args, first, end, panel, term, count, copies.x,
                   bf16_block_of(args, panel, term, count, copies.weights));
      term += kBf16Block;
    } while (term < args.terms);
  }
}

static void pack_bf16(const PackBf16Args& args) { pack_bf16_columns(args); }

static void linear_bf16(const LinearRowsArgs& args) {
#if defined(__FMA__)
  const unsigned int mode = _mm_getcsr();
  _mm_setcsr(mode | kDenormalsAreZero);
  bf16_passes(args);
  _mm_setcsr(mode);
#else
  bf16_passes(args);
#endif
}

}  // namespace primerl::PRIMERL_OPS_TARGET
