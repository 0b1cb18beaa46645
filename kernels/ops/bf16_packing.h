/// Rounding to bf16 and packing, for all kernels of linear_bf16; see ops.h for the layout and
/// bf16.h for the numbers. Compiled once per instruction set, with equal bits.
#pragma once

#include "kernels/ops/lanes.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/panel_kernels.h"

namespace primerl::PRIMERL_OPS_TARGET {

/// Terms whose weights of one panel, and rows whose x, stay in the caches.
constexpr int64_t kBf16Block = 512;
constexpr int64_t kRowsOfBf16Pass = 96;
static_assert(kBf16Block % kBf16Chunk == 0);

/// Bits of MXCSR: inputs that are denormal count as 0, results become 0, and round to nearest is
/// how every thread starts.
constexpr unsigned int kDenormalsAreZero = 0x8040;

/// padded_bf16_terms() of ops.h.
PRIMERL_INLINE int64_t padded_terms(int64_t terms) {
  return (terms + kBf16Chunk - 1) / kBf16Chunk * kBf16Chunk;
}

constexpr uint32_t kHighHalf = 0xffff0000U;
constexpr uint32_t kLeastNormal = 0x00800000U;

/// bf16_of() of bf16.h as floats.
PRIMERL_INLINE LaneBits rounded_bf16_bits(LaneBits bits) {
  const LaneBits magnitude = bits & ~kSignBit;
  const LaneBits is_nan = magnitude > kInfinityBits, is_zero = magnitude < kLeastNormal;
  const LaneBits rounded = bits + 0x7fffU + (bits >> 16 & 1U);
  const LaneBits number = (is_nan & (bits | 0x00400000U)) | (~is_nan & rounded);
  return ((is_zero & bits & kSignBit) | (~is_zero & number)) & kHighHalf;
}
PRIMERL_INLINE float rounded_bf16(float value) {
  return lanes_of(rounded_bf16_bits(bits_of(spread(value))))[0];
}
PRIMERL_INLINE Lanes without_denormals_of(Lanes value) {
  const LaneBits bits = bits_of(value);
  const LaneBits is_zero = (bits & ~kSignBit) < kLeastNormal;
  return lanes_of((is_zero & bits & kSignBit) | (~is_zero & bits));
}

/// Two terms of `lanes` columns each become pairs.
PRIMERL_INLINE void store_bf16_pairs(const float* even, const float* odd, int64_t lanes,
                                     uint16_t* to) {
  int64_t lane = 0;
  for (; lane + kLanes <= lanes; lane += kLanes) {
    const LaneBits pairs = rounded_bf16_bits(bits_of(load(even + lane))) >> 16 |
                           rounded_bf16_bits(bits_of(load(odd + lane)));
    __builtin_memcpy(to + 2 * lane, &pairs, sizeof(pairs));
  }
  for (; lane < lanes; ++lane) {
    const uint32_t pair = rounded_bf16_bits(bits_of(spread(even[lane])))[0] >> 16 |
                          rounded_bf16_bits(bits_of(spread(odd[lane])))[0];
    __builtin_memcpy(to + 2 * lane, &pair, sizeof(pair));
  }
}

/// `lanes` columns of a panel, with its terms padded.
PRIMERL_INLINE void pack_bf16_panel(LinearWeights from, int64_t lanes, int64_t terms,
                                    uint16_t* to) {
  float chunk[kBf16Chunk * kLinearPanel];
  for (int64_t first = 0; first < terms; first += kBf16Chunk) {
    const int64_t left = terms - first, count = left < kBf16Chunk ? left : kBf16Chunk;
    copy_panel(from, lanes, count, chunk);
    for (int64_t i = count * kLinearPanel; i < kBf16Chunk * kLinearPanel; ++i) chunk[i] = 0;
    for (int64_t k = 0; k < kBf16Chunk; k += 2)
      store_bf16_pairs(chunk + k * kLinearPanel, chunk + (k + 1) * kLinearPanel, lanes,
                       to + (first + k) * kLinearPanel);
    from.weight += kBf16Chunk * from.term_stride;
  }
}

PRIMERL_INLINE void pack_bf16_columns(const PackBf16Args& args) {
  const int64_t padded = padded_terms(args.terms);
  for (int64_t column = args.column_begin; column < args.column_end;) {
    const int64_t panel = column / kLinearPanel, lane = column % kLinearPanel;
    const int64_t left = args.column_end - column, most = kLinearPanel - lane;
    const int64_t lanes = left < most ? left : most;
    LinearWeights from = args.weights;
    from.weight += (column - args.column_begin) * from.column_stride;
    pack_bf16_panel(from, lanes, args.terms,
                    args.packed + panel * padded * kLinearPanel + 2 * lane);
    column += lanes;
  }
}

/// Terms [term, term + count) of a panel of the transposed GEMM's weights: its columns are our
/// terms. Both have numbers that are rounded already.
PRIMERL_INLINE void transpose_bf16_panel(const LinearRowsArgs& args, int64_t panel, int64_t term,
                                         int64_t count, uint16_t* to) {
  const int64_t padded = padded_terms(args.columns);
  for (int64_t k = 0; k < padded_terms(count); ++k)
    for (int64_t lane = 0; lane < kLinearPanel; ++lane) {
      const int64_t from = term + k, column = panel * kLinearPanel + lane;
      const bool is_there = k < count && column < args.columns;
      to[k / 2 * 2 * kLinearPanel + 2 * lane + k % 2] =
          is_there ? args.packed_bf16_transposed[from / kLinearPanel * kLinearPanel * padded +
                                                 column / 2 * 2 * kLinearPanel +
                                                 from % kLinearPanel * 2 + column % 2]
                   : uint16_t{0};
    }
}

/// Weights of the terms [term, term + count) of a panel: packed, or packed into `copy` now.
PRIMERL_INLINE const uint16_t* bf16_block_of(const LinearRowsArgs& args, int64_t panel,
                                             int64_t term, int64_t count, uint16_t* copy) {
  if (args.packed_bf16 != nullptr)
    return args.packed_bf16 + panel * kLinearPanel * padded_terms(args.terms) + term * kLinearPanel;
  if (args.packed_bf16_transposed != nullptr) {
    transpose_bf16_panel(args, panel, term, count, copy);
    return copy;
  }
  const int64_t column = panel * kLinearPanel, left = args.columns - column;
  LinearWeights from = args.weights;
  from.weight += column * from.column_stride + term * from.term_stride;
  if (left < kLinearPanel)
    for (int64_t i = 0; i < padded_terms(count) * kLinearPanel; ++i) copy[i] = 0;
  pack_bf16_panel(from, left < kLinearPanel ? left : kLinearPanel, count, copy);
  return copy;
}

}  // namespace primerl::PRIMERL_OPS_TARGET
