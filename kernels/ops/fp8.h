/// FP8 numbers (e4m3: four exponent bits, three mantissa bits, no infinity) in plain C++: the
/// reference for the operations of cuda_ops.h that write them.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace primerl {

inline constexpr float kE4m3Largest = 448;
inline constexpr float kFp8Floor = 1e-12F;  // lower bound of the greatest magnitude, for the scale

/// The scale of a block whose greatest magnitude is `largest`.
inline float fp8_scale(float largest) { return std::max(largest, kFp8Floor) / kE4m3Largest; }

/// Rounds to nearest, ties to even; larger values become the largest code.
inline uint8_t e4m3_of(float value) {
  constexpr float kLeastNormal = 0x1p-6F;
  constexpr uint8_t kLargestCode = 0x7e, kNoNumber = 0x7f;
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? 0x80 : 0);
  if (std::isnan(value)) return static_cast<uint8_t>(sign | kNoNumber);
  const float magnitude = std::min(std::abs(value), kE4m3Largest);
  // Below that the codes are multiples of 2^-9.
  if (magnitude < kLeastNormal)
    return static_cast<uint8_t>(sign | static_cast<int>(std::nearbyint(magnitude * 512)));
  auto bits = std::bit_cast<uint32_t>(magnitude);
  bits += 0x7ffff + (bits >> 20 & 1);
  const auto code = static_cast<uint8_t>((bits >> 20) - ((127U - 7U) << 3));
  return static_cast<uint8_t>(sign | std::min(code, kLargestCode));
}

inline float float_of_e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

}  // namespace primerl
