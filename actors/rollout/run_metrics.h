/// RunMetrics: the means of what runs report, over the rollouts of one training step.
/// A value; not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "actors/rollout/group.h"
#include "graph/base/services.h"

namespace primerl {

/// Names of scores and metrics of one step; the others are left out.
inline constexpr size_t kRunMetricsMax = 64;

class RunMetrics {
 public:
  int64_t step() const { return step_; }
  bool is_empty() const { return sums_.empty(); }
  /// Adds the rollouts of a group that trained in this step; nothing if it was not driven.
  void add(int64_t step, const Group& group);
  /// "env/<environment>/<name>/mean", and forgets them.
  MetricValues finish(std::string_view environment);

  template <class F>
  static void fields(F& f) {
    f("step", &RunMetrics::step_)("sums", &RunMetrics::sums_);
  }

 private:
  void add_number(const std::string& name, double value);

  int64_t step_ = 0;
  std::map<std::string, std::pair<double, int64_t>> sums_;  // and how many
};

}  // namespace primerl
