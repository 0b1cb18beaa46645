/// How near to its record what is computed again must come.
///
/// Where engine and learner compute on the CPU that is equal bits. On a CUDA device sums have no
/// fixed order everywhere (docs/design/cuda.md), so that log-probabilities and a training step's
/// numbers are held against the recorded ones within a tolerance that is stated here; tokens, ends
/// and counts must be equal. Within it whoever asked gets the recorded numbers, so that a
/// difference of a last bit is no first cause of others.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "kernels/train/learner.h"

namespace primerl {

struct ReplayTolerance {
  double logprob = 0;          // of each log-probability, absolute
  double report_absolute = 0;  // of each number of a training step, plus
  double report_relative = 0;  // of the recorded one
  bool is_exact() const { return logprob == 0 && report_absolute == 0 && report_relative == 0; }
};

/// Of bf16 products, whose last bit is 1/256: the logits of a token are near 10.
inline constexpr ReplayTolerance kDeviceTolerance{
    .logprob = 0.125, .report_absolute = 0.02, .report_relative = 0.05};

/// Exact, unless an engine or a learner of the plan computes on a device: weights that are made
/// there reach engines everywhere.
ReplayTolerance tolerance_of(const Plan& plan);

/// The first number of two lists that is further away than `tolerance`, in words; "": none.
/// `largest` grows to the largest difference. Infinities and nothing are equal to themselves.
std::string far_number(const std::vector<float>& then, const std::vector<float>& now,
                       double tolerance, double& largest);

/// The first difference between two reports of one step; "": none. The largest mismatch of a step
/// is one token's: it is compared where all must be equal, and not within a tolerance.
std::string difference(const TrainReport& then, const TrainReport& now,
                       const ReplayTolerance& tolerance, double& largest);

/// What was compared within a tolerance so far. Any thread.
class NearNumbers {
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
  double largest_number_ = 0;  // by its own tolerance: 1 is the most that is allowed
};

}  // namespace primerl
