/// bf16 numbers, and the sums of linear_bf16 (ops.h), in plain C++: the reference for every
/// instruction set.
///
/// The order is that of AMX's TDPBF16PS. Terms are padded with zeros to a multiple of 32. Of each
/// 32 terms, those with even numbers are one chain of fused multiply-adds from 0, and those with
/// odd numbers another; both are added, and their sum is added to y. So
///   y = ((residual + bias) + sum_0) + sum_1 + ...,   sum_j = even_j + odd_j.
/// Each operation rounds to nearest, ties to even. Denormal numbers count as 0 and become 0 of
/// their sign: inputs, before they are rounded to bf16, and results. NaN stays NaN, and its payload
/// is not specified.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace primerl {

inline constexpr float kLeastNormalFloat = 0x1p-126F;

/// `value`, or 0 of its sign if it is denormal.
inline float without_denormals(float value) {
  return std::abs(value) < kLeastNormalFloat ? std::copysign(0.0F, value) : value;
}

/// Rounds to nearest, ties to even; NaN stays NaN.
inline uint16_t bf16_of(float value) {
  auto bits = std::bit_cast<uint32_t>(without_denormals(value));
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  bits += 0x7fff + (bits >> 16 & 1);
  return static_cast<uint16_t>(bits >> 16);
}

inline float float_of_bf16(uint16_t number) {
  return std::bit_cast<float>(static_cast<uint32_t>(number) << 16);
}

/// `sum` rounded to a float, where results below the least normal number become 0. `sum` is exact
/// or has been rounded once to double: for sums of two floats that changes no float.
inline float rounded_bf16_sum(double sum) {
  constexpr double kRoundsToLeastNormal = 0x1.ffffffp-127;  // and larger ones are normal
  if (std::abs(sum) < kRoundsToLeastNormal) return std::copysign(0.0F, static_cast<float>(sum));
  return static_cast<float>(sum);
}

/// a + b and a * b + c, rounded once. a * b of two bf16 numbers is exact in double.
inline float add_bf16(float a, float b) {
  return rounded_bf16_sum(double{without_denormals(a)} + double{without_denormals(b)});
}
inline float multiply_add_bf16(float a, float b, float c) {
  return rounded_bf16_sum(double{a} * double{b} + double{c});
}

/// One y whose `x` and `weights` are rounded already, by term.
template <class X, class W>
float bf16_dot(int64_t terms, float start, X x, W weight) {
  float y = start;
  for (int64_t first = 0; first < terms; first += 32) {
    float chains[2] = {0, 0};
    for (int64_t k = first; k < first + 32; ++k) {
      const float a = k < terms ? x(k) : 0, b = k < terms ? weight(k) : 0;
      chains[k % 2] = multiply_add_bf16(a, b, chains[k % 2]);
    }
    y = add_bf16(y, add_bf16(chains[0], chains[1]));
  }
  return y;
}

}  // namespace primerl
