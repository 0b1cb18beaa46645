/// Histograms over the requests that an engine has ended: those of /metrics under vLLM's names and
/// with vLLM's bounds. Workers fill them, the monitor prints them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace primerl {

enum class RequestValue : uint8_t {
  kTimeToFirstToken,    // seconds, from submit() to the end of its prefill
  kTimePerOutputToken,  // seconds per token after the first, average over the request
  kTime,                // seconds, from submit() to its end
  kPromptTokens,
  kGenerationTokens,
};
inline constexpr size_t kRequestValues = 5;

struct RequestHistogramKind {
  std::string_view metric;
  std::string_view help;
  std::span<const double> bounds;  // upper bounds, each inclusive; one more bucket is above the
                                   // last
};
const std::array<RequestHistogramKind, kRequestValues>& request_histogram_kinds();

/// One histogram.
struct RequestHistogram {
  std::vector<uint64_t> counts;  // count of each bucket, not cumulative, [num_bounds + 1]; empty:
                                 // no request yet
  double sum = 0;

  void add(RequestValue kind, double value);

  template <class F>
  static void fields(F& f) {
    f("counts", &RequestHistogram::counts)("sum", &RequestHistogram::sum);
  }
  friend bool operator==(const RequestHistogram&, const RequestHistogram&) = default;
};

}  // namespace primerl
