/// What is counted of every request that an engine has ended, by size: the histograms of /metrics
/// under vLLM's names and with vLLM's bounds. Workers fill them, the monitor prints them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace primerl {

enum class RequestValue : uint8_t {
  kTimeToFirstToken,    // seconds, from submit() to the end of its prefill
  kTimePerOutputToken,  // seconds, of each token after the first, on average
  kTime,                // seconds, from submit() to its end
  kPromptTokens,
  kGenerationTokens,
};
inline constexpr size_t kRequestValues = 5;

struct RequestHistogramKind {
  std::string_view metric;
  std::string_view help;
  std::span<const double> bounds;  // upper ones, both included; one more bucket is above the last
};
const std::array<RequestHistogramKind, kRequestValues>& request_histogram_kinds();

/// One of them.
struct RequestHistogram {
  std::vector<uint64_t> counts;  // of each bucket alone, [num_bounds + 1]; empty: nothing yet
  double sum = 0;

  void add(RequestValue kind, double value);

  template <class F>
  static void fields(F& f) {
    f("counts", &RequestHistogram::counts)("sum", &RequestHistogram::sum);
  }
  friend bool operator==(const RequestHistogram&, const RequestHistogram&) = default;
};

}  // namespace primerl
