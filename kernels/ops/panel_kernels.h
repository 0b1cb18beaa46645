/// Panels of weights: transposing and copying them. Compiled once per instruction set.
#pragma once

#include "kernels/ops/lanes.h"
#include "kernels/ops/ops.h"

namespace primerl::PRIMERL_OPS_TARGET {

static_assert(kLinearPanel == 2 * kLanes);

/// Transposes `rows` rows of eight, `stride` apart, into eight columns. With fewer than eight rows,
/// the last lanes of each column are undefined.
template <int kRows = 8>
PRIMERL_INLINE void transpose_square(const float* from, int64_t stride, float* to,
                                     int64_t to_stride) {
  Lanes a[8], b[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) a[i] = load(from + (i < kRows ? i : kRows - 1) * stride);
    // Pairs of rows, then fours, then halves: one instruction each.
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    b[i] = __builtin_shuffle(a[i], a[i + 1], LaneInts{0, 8, 1, 9, 4, 12, 5, 13});
    b[i + 1] = __builtin_shuffle(a[i], a[i + 1], LaneInts{2, 10, 3, 11, 6, 14, 7, 15});
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      a[i + 2 * j] = __builtin_shuffle(b[i + j], b[i + j + 2], LaneInts{0, 1, 8, 9, 4, 5, 12, 13});
      a[i + 2 * j + 1] =
          __builtin_shuffle(b[i + j], b[i + j + 2], LaneInts{2, 3, 10, 11, 6, 7, 14, 15});
    }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    b[i] = __builtin_shuffle(a[i], a[i + 4], LaneInts{0, 1, 2, 3, 8, 9, 10, 11});
    b[i + 4] = __builtin_shuffle(a[i], a[i + 4], LaneInts{4, 5, 6, 7, 12, 13, 14, 15});
  }
  // In order: with fewer than eight rows, the next column overwrites the undefined lanes.
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) store(to + i * to_stride, b[i]);
}

/// to[k * kLinearPanel + lane] = the weight of column `lane` and term k; `lanes` <= kLinearPanel.
PRIMERL_INLINE void copy_panel(const LinearWeights& from, int64_t lanes, int64_t terms, float* to) {
  int64_t done = 0;
  if (from.term_stride == 1) {
    for (; done + kLanes <= terms; done += kLanes) {
      int64_t lane = 0;
      for (; lane + kLanes <= lanes; lane += kLanes)
        transpose_square(from.weight + lane * from.column_stride + done, from.column_stride,
                         to + done * kLinearPanel + lane, kLinearPanel);
      for (; lane < lanes; ++lane)
        for (int64_t k = done; k < done + kLanes; ++k)
          to[k * kLinearPanel + lane] = from.weight[lane * from.column_stride + k];
    }
  } else if (from.column_stride == 1 && lanes == kLinearPanel) {
    for (; done < terms; ++done) {
      const float* row = from.weight + done * from.term_stride;
      store(to + done * kLinearPanel, load(row));
      store(to + done * kLinearPanel + kLanes, load(row + kLanes));
    }
  }
  for (; done < terms; ++done)
    for (int64_t lane = 0; lane < lanes; ++lane)
      to[done * kLinearPanel + lane] =
          from.weight[lane * from.column_stride + done * from.term_stride];
}

}  // namespace primerl::PRIMERL_OPS_TARGET
