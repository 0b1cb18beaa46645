/// Histogram: counts of values in fixed buckets, for the metrics of a step. Adding a value
/// allocates nothing.
///
/// Among metrics a histogram "x" is one value for each bucket, "x/le/0.5": the count of values
/// above the bound before and at most 0.5. The last bucket is "x/le/inf".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "graph/base/services.h"

namespace primerl {

/// Upper bounds of buckets; one more bucket has the values above the last bound.
inline constexpr std::array kRatioBounds = {0.125, 0.25, 0.5, 0.67, 0.8, 0.9, 0.95, 0.99,
                                            1.01,  1.05, 1.1, 1.25, 1.5, 2.0, 4.0,  8.0};
inline constexpr std::array kStalenessBounds = {0.0, 1.0, 2.0,  3.0,  4.0,  6.0,
                                                8.0, 12., 16.0, 24.0, 32.0, 64.0};
inline constexpr std::array kLengthBounds = {
    4.0, 16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384., 32768.0, 65536.0};
inline constexpr std::array kRewardBounds = {-10.0, -5.0, -2.0, -1.0, -0.5, 0.0, 0.1, 0.2, 0.3, 0.4,
                                             0.5,   0.6,  0.7,  0.8,  0.9,  1.0, 2.0, 5.0, 10.0};
/// For the position of a token in its sample, and for the versions between a token and its step.
inline constexpr std::array kPositionBounds = {16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0};
inline constexpr std::array kDistanceBounds = {0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0};

/// The number of bounds below the value: its bucket. NaN has none below it.
template <size_t N>
size_t bucket_of(const std::array<double, N>& bounds, double value) {
  size_t bucket = 0;
  for (size_t count = N; count > 1;) {  // halves, without branches
    const size_t half = count / 2;
    bucket += value > bounds[bucket + half - 1] ? half : 0;
    count -= half;
  }
  return bucket + (value > bounds[bucket] ? 1 : 0);
}

template <size_t N>
using BucketCounts = std::array<int64_t, N + 1>;

/// Adds the buckets from the first to the last that has a value, and the empty one before the
/// first, whose bound is the lower edge. Nothing if all are empty.
void add_histogram(std::string_view name, std::span<const double> bounds,
                   std::span<const int64_t> counts, MetricValues& values);

/// "0.5", or "inf" after the last bound.
std::string bound_text(std::span<const double> bounds, size_t bucket);

/// A metric that is a bucket: "x/le/0.5".
struct MetricBucket {
  std::string_view histogram;  // "x"
  double bound = 0;
};
std::optional<MetricBucket> bucket_of_metric(std::string_view name);

}  // namespace primerl
