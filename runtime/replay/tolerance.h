/// The allowed difference between recorded values and values that are computed again.
///
/// If engine and learner compute on the CPU, the bits must be equal. On a CUDA device some sums
/// have no fixed order (docs/design/cuda.md). So log-probabilities and the numbers of a training
/// step are compared within the tolerance that is defined here; tokens, ends and counts must be
/// equal. Within the tolerance the caller gets the recorded numbers, so that a difference in the
/// last bit does not cause other differences.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "kernels/train/learner.h"

namespace primerl {

struct ReplayTolerance {
  double logprob = 0;          // for each log-probability, absolute
  double report_absolute = 0;  // for each number of a training step, absolute part
  double report_relative = 0;  // relative to the recorded number; added to the absolute part
  bool is_exact() const { return logprob == 0 && report_absolute == 0 && report_relative == 0; }
};

/// For results of bf16 matmuls, whose last bit is 1/256: the logits of a token are near 10.
inline constexpr ReplayTolerance kDeviceTolerance{
    .logprob = 0.125, .report_absolute = 0.02, .report_relative = 0.05};

/// Zero, unless an engine or a learner of the plan computes on a device: weights that are made
/// there reach all engines.
ReplayTolerance tolerance_of(const Plan& plan);

/// Text about the first number whose two values differ by more than `tolerance`; "": none.
/// `largest` becomes the largest difference if it was smaller. Infinity and NaN are equal to
/// themselves.
std::string first_large_difference(const std::vector<float>& then, const std::vector<float>& now,
                                   double tolerance, double& largest);

/// Text about the first difference between two reports of one step; "": none. The largest mismatch
/// of a step is the value of one token. It is compared only if all numbers must be equal, and never
/// within a tolerance.
std::string difference(const TrainReport& then, const TrainReport& now,
                       const ReplayTolerance& tolerance, double& largest);

/// The same for two answers to one accumulate(); `largest` is of the log-probabilities.
std::string difference(const LossResult& then, const LossResult& now,
                       const ReplayTolerance& tolerance, double& largest);

/// Counts the numbers that were compared within a tolerance. Any thread.
class ToleranceCounts {
 public:
  void add_logprobs(uint64_t count, double largest);
  void add_report(double largest);
  /// For a person; "" when nothing was compared.
  std::string text(const ReplayTolerance& tolerance) const;

 private:
  mutable std::mutex mutex_;
  uint64_t num_logprobs_ = 0;
  uint64_t num_reports_ = 0;
  double largest_logprob_ = 0;
  double largest_number_ = 0;  // as a fraction of its own tolerance: 1 is the maximum
};

}  // namespace primerl
