/// Dropout of adapters: see ops.h. Compiled once per instruction set.
#pragma once

#include "kernels/ops/lanes.h"
#include "kernels/ops/ops.h"

namespace primerl::PRIMERL_OPS_TARGET {

/// Four 64-bit words: 16 random numbers.
using Words = uint64_t __attribute__((vector_size(32)));
using UnalignedWords = uint64_t __attribute__((vector_size(32), aligned(2), may_alias));
/// Eight random numbers.
using UnalignedDraws = uint16_t __attribute__((vector_size(16), aligned(2), may_alias));

constexpr int64_t kWords = 4, kDrawsOfWords = 16;

/// mix() as in graph/base/random.cc: mix(a, b) = finalize(a ^ finalize(b + 0x9E3779B97F4A7C15)).
PRIMERL_INLINE Words finalize(Words x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ULL;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

static void draw(const DrawArgs& args) {
  const int64_t width = drawn_columns(args.columns);
  Words block = {0, 1, 2, 3};
  for (int64_t column = 0; column < args.columns; column += kDrawsOfWords, block += kWords) {
    const Words mixed = finalize(block + 0x9E3779B97F4A7C15ULL);
    uint16_t* to = args.draws + column;
    for (int64_t row = 0; row < args.rows; ++row, to += width)
      *reinterpret_cast<UnalignedWords*>(to) = finalize(mixed ^ args.keys[row]);
  }
}

/// Eight numbers. Masked by bits, so that no compiler fuses the multiplication with a following
/// addition.
PRIMERL_INLINE Lanes left_of(Lanes x, Lanes scale, const uint16_t* draws, LaneInts threshold) {
  const LaneInts drawn =
      __builtin_convertvector(*reinterpret_cast<const UnalignedDraws*>(draws), LaneInts);
  const LaneInts is_left = drawn >= threshold;
  return reinterpret_cast<Lanes>(reinterpret_cast<LaneInts>(x * scale) & is_left);
}

static void apply_dropout(const DropOutArgs& args) {
  const int64_t width = drawn_columns(args.columns), whole = args.columns / kLanes * kLanes;
  const Lanes scale = spread(args.scale);
  const LaneInts threshold = LaneInts{} + args.threshold;
  for (int64_t row = 0; row < args.rows; ++row) {
    const uint16_t* draws = args.draws + row * width;
    const float* x = args.x + row * args.columns;
    float* y = args.y + row * args.columns;
    int64_t i = 0;
    for (; i < whole; i += kLanes) {
      const Lanes left = left_of(load(x + i), scale, draws + i, threshold);
      store(y + i, args.adds ? load(y + i) + left : left);
    }
    if (i == args.columns) continue;
    const int64_t rest = args.columns - i;
    const Lanes left = left_of(load_part(x + i, rest, 0), scale, draws + i, threshold);
    store_part(y + i, args.adds ? load_part(y + i, rest, 0) + left : left, rest);
  }
}

}  // namespace primerl::PRIMERL_OPS_TARGET
