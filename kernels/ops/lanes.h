/// Eight fp32 lanes, by the compiler's vector extension: the same additions in the same order on
/// every instruction set, only faster or slower. Only for kernels/ops/*_kernels.h.
///
/// The kernels are compiled once per instruction set; PRIMERL_OPS_TARGET names the set and keeps
/// the copies apart. They use no inline function of another header: otherwise the linker could use
/// its AVX2 copy in baseline code.
#pragma once

#include <cstdint>

#ifndef PRIMERL_OPS_TARGET
#define PRIMERL_OPS_TARGET baseline
#endif
#define PRIMERL_INLINE static inline __attribute__((always_inline))

namespace primerl::PRIMERL_OPS_TARGET {

using Lanes = float __attribute__((vector_size(32)));
using LaneInts = int32_t __attribute__((vector_size(32)));
using UnalignedLanes = float __attribute__((vector_size(32), aligned(4), may_alias));

constexpr int64_t kLanes = 8;

PRIMERL_INLINE Lanes load(const float* from) {
  return *reinterpret_cast<const UnalignedLanes*>(from);
}
PRIMERL_INLINE void store(float* to, Lanes value) {
  *reinterpret_cast<UnalignedLanes*>(to) = value;
}
PRIMERL_INLINE Lanes spread(float value) {
  return Lanes{value, value, value, value, value, value, value, value};
}

/// a * b + c, rounded once if the instruction set supports it. Explicit, where the bits must not
/// depend on what a compiler fuses.
PRIMERL_INLINE Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
#ifdef __FMA__
  return __builtin_ia32_vfmaddps256(a, b, c);
#else
  return a * b + c;
#endif
}

PRIMERL_INLINE float sum_of(Lanes v) {
  return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7]));
}
PRIMERL_INLINE Lanes larger_of(Lanes a, Lanes b) { return a > b ? a : b; }
PRIMERL_INLINE float largest_of(Lanes v) {
  float largest = v[0];
  for (int i = 1; i < 8; ++i) largest = v[i] > largest ? v[i] : largest;
  return largest;
}

PRIMERL_INLINE Lanes add_neighbours(Lanes a, Lanes b) {
  return __builtin_shuffle(a, b, LaneInts{0, 8, 2, 10, 4, 12, 6, 14}) +
         __builtin_shuffle(a, b, LaneInts{1, 9, 3, 11, 5, 13, 7, 15});
}
PRIMERL_INLINE Lanes add_pairs(Lanes a, Lanes b) {
  return __builtin_shuffle(a, b, LaneInts{0, 1, 8, 9, 4, 5, 12, 13}) +
         __builtin_shuffle(a, b, LaneInts{2, 3, 10, 11, 6, 7, 14, 15});
}
PRIMERL_INLINE Lanes add_halves(Lanes a, Lanes b) {
  return __builtin_shuffle(a, b, LaneInts{0, 1, 2, 3, 8, 9, 10, 11}) +
         __builtin_shuffle(a, b, LaneInts{4, 5, 6, 7, 12, 13, 14, 15});
}
/// The sums of eight vectors, one per lane.
PRIMERL_INLINE Lanes sums_of(const Lanes* v) {
  return add_halves(add_pairs(add_neighbours(v[0], v[1]), add_neighbours(v[2], v[3])),
                    add_pairs(add_neighbours(v[4], v[5]), add_neighbours(v[6], v[7])));
}

/// e^x to about 1e-7 relative; 0 below -87, saturated above 88.
PRIMERL_INLINE Lanes exp_of(Lanes x) {
  const Lanes low = spread(-87.0F), high = spread(88.0F);
  const auto below = x < low;
  x = below ? low : x;
  x = x > high ? high : x;
  const Lanes scaled = x * 1.44269504088896341F;
  const Lanes half = scaled < 0 ? spread(-0.5F) : spread(0.5F);
  const LaneInts whole = __builtin_convertvector(scaled + half, LaneInts);
  const Lanes n = __builtin_convertvector(whole, Lanes);
  const Lanes r = (x - n * 0.693359375F) - n * -2.12194440e-4F;
  Lanes p = spread(1.9875691500e-4F);
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const LaneInts exponent = (whole + 127) << 23;
  Lanes power;
  __builtin_memcpy(&power, &exponent, sizeof(power));
  return below ? spread(0.0F) : p * power;
}

using LaneBits = uint32_t __attribute__((vector_size(32)));

constexpr uint32_t kSignBit = 0x80000000U;
constexpr uint32_t kInfinityBits = 0x7f800000U;

PRIMERL_INLINE LaneBits bits_of(Lanes value) {
  LaneBits bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}
PRIMERL_INLINE Lanes lanes_of(LaneBits bits) {
  Lanes value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

/// The first `count` (< 8) floats, the rest `fill`.
PRIMERL_INLINE Lanes load_part(const float* from, int64_t count, float fill) {
  Lanes v = spread(fill);
  for (int64_t i = 0; i < count; ++i) v[i] = from[i];
  return v;
}
PRIMERL_INLINE void store_part(float* to, Lanes value, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = value[i];
}

}  // namespace primerl::PRIMERL_OPS_TARGET
