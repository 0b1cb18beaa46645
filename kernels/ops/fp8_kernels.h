/// Rounding to FP8 numbers with block scales; see ops.h for shapes and fp8.h for the numbers.
/// Compiled once per instruction set, with equal bits.
#pragma once

#include "kernels/ops/lanes.h"
#include "kernels/ops/ops.h"

namespace primerl::PRIMERL_OPS_TARGET {

/// Calls body(lanes, first, count) for each eight numbers of a run; the last may be fewer.
template <class Body>
PRIMERL_INLINE void for_lanes(const float* x, int64_t count, Body&& body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(load(x + i), i, kLanes);
  if (i < count) body(load_part(x + i, count - i, 0), i, count - i);
}

/// The greatest of `so_far` and the magnitudes of a run, as bits: NaN is above infinity there.
PRIMERL_INLINE LaneBits larger_magnitudes(const float* x, int64_t count, LaneBits so_far) {
  for_lanes(x, count, [&](Lanes value, int64_t, int64_t) {
    const LaneBits magnitude = bits_of(value) & ~kSignBit;
    so_far = magnitude > so_far ? magnitude : so_far;
  });
  return so_far;
}

PRIMERL_INLINE float largest_magnitude(LaneBits magnitudes) {
  uint32_t largest = 0;
  for (int i = 0; i < kLanes; ++i) largest = magnitudes[i] > largest ? magnitudes[i] : largest;
  float value;
  __builtin_memcpy(&value, &largest, sizeof(value));
  return value;
}

/// fp8_scale() of fp8.h: NaN for NaN.
PRIMERL_INLINE float fp8_scale_of(float largest) {
  return (largest < 1e-12F ? 1e-12F : largest) / 448.0F;
}

/// The e4m3 number nearest to each lane, ties to even; larger ones become 448. Adding 2^20 times
/// the lane's power of two leaves three mantissa bits; below 2^-6 numbers are multiples of 2^-9.
PRIMERL_INLINE Lanes nearest_e4m3(Lanes value) {
  constexpr uint32_t kLargestBits = 0x43e00000U;      // 448
  constexpr uint32_t kLeastNormalBits = 0x3c800000U;  // 2^-6
  constexpr uint32_t kTwentyPowers = 20U << 23;
  const LaneBits bits = bits_of(value);
  LaneBits magnitude = bits & ~kSignBit;
  const LaneBits is_large = (magnitude > kLargestBits) & (magnitude <= kInfinityBits);
  magnitude = (magnitude & ~is_large) | (is_large & kLargestBits);
  LaneBits power = magnitude & kInfinityBits;
  const LaneBits is_small = power < kLeastNormalBits;
  power = (power & ~is_small) | (is_small & kLeastNormalBits);
  const Lanes magic = lanes_of(power + kTwentyPowers);
  const Lanes rounded = (lanes_of(magnitude) + magic) - magic;
  return lanes_of(bits_of(rounded) | (bits & kSignBit));
}

PRIMERL_INLINE void round_run(const float* x, int64_t count, float scale, float* y) {
  const Lanes scales = spread(scale);
  for_lanes(x, count, [&](Lanes value, int64_t first, int64_t left) {
    const Lanes rounded = nearest_e4m3(value / scales) * scales;
    if (left == kLanes)
      store(y + first, rounded);
    else
      store_part(y + first, rounded, left);
  });
}

static float round_fp8_block(const RoundFp8BlockArgs& args) {
  LaneBits magnitudes = {};
  for (int64_t run = 0; run < args.runs; ++run)
    magnitudes = larger_magnitudes(args.x + run * args.stride, args.count, magnitudes);
  const float largest = largest_magnitude(magnitudes);
  const float scale = fp8_scale_of(largest);
  for (int64_t run = 0; run < args.runs; ++run)
    round_run(args.x + run * args.stride, args.count, scale, args.y + run * args.stride);
  return largest;
}

static void round_fp8_rows(const RoundFp8RowsArgs& args) {
  constexpr int64_t kBlock = 128;
  for (int64_t row = 0; row < args.rows; ++row)
    for (int64_t first = 0; first < args.width; first += kBlock) {
      const int64_t left = args.width - first, count = left < kBlock ? left : kBlock;
      const float* x = args.x + row * args.width + first;
      const float scale = fp8_scale_of(largest_magnitude(larger_magnitudes(x, count, LaneBits{})));
      round_run(x, count, scale, args.y + row * args.width + first);
    }
}

}  // namespace primerl::PRIMERL_OPS_TARGET
