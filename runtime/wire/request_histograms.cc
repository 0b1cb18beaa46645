#include "runtime/wire/request_histograms.h"

#include <algorithm>

#include "graph/base/assert.h"

namespace primerl {
namespace {

constexpr double kFirstTokenSeconds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                         0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                         20,    40,    80,   160,  640,  2560};
constexpr double kTokenSeconds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                    0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
constexpr double kSeconds[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                               30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
constexpr double kTokens[] = {1,    2,    5,     10,    20,    50,     100,    200,    500, 1000,
                              2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1e6};

}  // namespace

const std::array<RequestHistogramKind, kRequestValues>& request_histogram_kinds() {
  static const std::array<RequestHistogramKind, kRequestValues> kinds = {{
      {"primerl_engine_time_to_first_token_seconds",
       "From the request to its first token; only requests that ended by themselves.",
       kFirstTokenSeconds},
      {"primerl_engine_request_time_per_output_token_seconds",
       "Mean time of each token of a request after its first.", kTokenSeconds},
      {"primerl_engine_e2e_request_latency_seconds", "From the request to its end.", kSeconds},
      {"primerl_engine_request_prompt_tokens", "Prompt tokens of a request.", kTokens},
      {"primerl_engine_request_generation_tokens", "Tokens that were sampled for a request.",
       kTokens},
  }};
  return kinds;
}

void RequestHistogram::add(RequestValue kind, double value) {
  const auto bounds = request_histogram_kinds()[static_cast<size_t>(kind)].bounds;
  if (counts.empty()) counts.resize(bounds.size() + 1);
  CHECK(counts.size() == bounds.size() + 1, "a histogram of another kind");
  const auto bucket = std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin();
  ++counts[static_cast<size_t>(bucket)];
  sum += value;
}

}  // namespace primerl
