#include "graph/base/histogram.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace primerl {
namespace {

constexpr std::string_view kBucketMark = "/le/";

}  // namespace

std::string bound_text(std::span<const double> bounds, size_t bucket) {
  return bucket < bounds.size() ? fmt::format("{:g}", bounds[bucket]) : "inf";
}

void add_histogram(std::string_view name, std::span<const double> bounds,
                   std::span<const int64_t> counts, MetricValues& values) {
  size_t first = 0, end = counts.size();
  while (first < end && counts[first] == 0) ++first;
  while (end > first && counts[end - 1] == 0) --end;
  if (first == end) return;
  for (size_t i = first - (first > 0 ? 1 : 0); i < end; ++i)
    values.emplace_back(fmt::format("{}{}{}", name, kBucketMark, bound_text(bounds, i)),
                        static_cast<double>(counts[i]));
}

std::optional<MetricBucket> bucket_of_metric(std::string_view name) {
  const size_t mark = name.rfind(kBucketMark);
  if (mark == std::string_view::npos) return std::nullopt;
  const std::string_view text = name.substr(mark + kBucketMark.size());
  MetricBucket bucket{name.substr(0, mark), HUGE_VAL};
  if (text == "inf") return bucket;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), bucket.bound);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  return bucket;
}

}  // namespace primerl
