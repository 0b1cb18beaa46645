/// Timing for the benches of weights: seconds, medians and their spread.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "graph/base/assert.h"

namespace primerl::bench {

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double seconds_of(const std::function<void()>& body) {
  const double begin = now();
  body();
  return now() - begin;
}

inline void must(cudaError_t code, const char* what) {
  CHECK(code == cudaSuccess, fmt::format("{}: {}", what, cudaGetErrorString(code)));
}

inline double median(std::vector<double> all) {
  std::ranges::sort(all);
  return all[all.size() / 2];
}

/// Values of a quantity in the order of measurement. The first kWarmUps are reported separately,
/// since the learner's buffers are new then.
class Spread {
 public:
  static constexpr int kWarmUps = 3;

  void add(double seconds) { all_.push_back(seconds); }
  double middle() const { return median(warm()); }
  std::string text() const {
    if (std::ssize(all_) <= kWarmUps) return "none";
    const auto measured = warm();
    const auto [least, most] = std::ranges::minmax_element(measured);
    return fmt::format("{:.3f} ms [{:.3f}, {:.3f}], first {:.3f} {:.3f} {:.3f}", 1e3 * middle(),
                       1e3 * *least, 1e3 * *most, 1e3 * all_[0], 1e3 * all_[1], 1e3 * all_[2]);
  }

 private:
  std::vector<double> warm() const { return {all_.begin() + kWarmUps, all_.end()}; }

  std::vector<double> all_;
};

}  // namespace primerl::bench
