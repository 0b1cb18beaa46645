/// Histogram: counts of microseconds in 4 buckets per octave, so that percentiles are within 19 %.
/// A plain value, stored in index files unchanged.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace primerl {

struct Histogram {
  std::array<uint32_t, 128> counts{};

  static constexpr size_t bucket_of(uint32_t value) {
    if (value < 4) return value;
    const auto exponent = static_cast<size_t>(std::bit_width(value)) - 1;
    return (exponent - 1) * 4 + ((value >> (exponent - 2)) & 3);
  }
  /// The largest value of a bucket.
  static constexpr uint64_t top_of(size_t bucket) {
    if (bucket < 4) return bucket;
    const size_t exponent = bucket / 4 + 1;
    return ((uint64_t{4 + bucket % 4} + 1) << (exponent - 2)) - 1;
  }
  void add(uint32_t value) { ++counts[bucket_of(value)]; }
  /// A value that was added before.
  void remove(uint32_t value) { --counts[bucket_of(value)]; }
  void add(const Histogram& other) {
    for (size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
  }
  /// The largest value of the bucket that contains the percentile `part` (0 to 1); 0 without
  /// values.
  uint64_t percentile(double part) const {
    uint64_t total = 0;
    for (const uint32_t count : counts) total += count;
    uint64_t seen = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      seen += counts[i];
      if (counts[i] > 0 && static_cast<double>(seen) >= part * static_cast<double>(total))
        return top_of(i);
    }
    return 0;
  }
};

}  // namespace primerl
