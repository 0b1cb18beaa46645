/// StepMeasures: the numbers of a step that only a person looks at: its floating-point operations,
/// gradient norms by part of the model, and where policy and engine differ. Nothing of a training
/// depends on them. Adding a token allocates nothing.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "graph/base/histogram.h"

namespace primerl {

/// Parts of a model whose gradients have a norm of their own.
enum class GradientGroup : uint8_t { kEmbeddings, kAttention, kMlp, kNorms, kHead, kAdapters };
inline constexpr std::array kGradientGroups = {
    GradientGroup::kEmbeddings, GradientGroup::kAttention, GradientGroup::kMlp,
    GradientGroup::kNorms,      GradientGroup::kHead,      GradientGroup::kAdapters};
/// "embeddings", "attention", "mlp", "norms", "head", "adapters".
std::string_view to_string(GradientGroup group);

/// The mean mismatch KL of some tokens.
struct MismatchPart {
  double mean = 0;
  int64_t count = 0;

  template <class F>
  static void fields(F& f) {
    f("mean", &MismatchPart::mean)("count", &MismatchPart::count);
  }
  friend bool operator==(const MismatchPart&, const MismatchPart&) = default;
};

struct StepMeasures {
  double flops = 0;  // of the model in the passes of the step (kernels/common/flops.h); 0: unknown
  double peak_flops = 0;    // of the device, per second; 0: unknown
  double teacher_kl = 0;    // of "gkd": the mean forward KL of the teacher's likeliest tokens,
  double teacher_mass = 0;  // and of the probability that the teacher gives them; 0: not measured
  /// Before the clip, by GradientGroup; 0: the model has no trained part of the group. Empty: the
  /// learner has none.
  std::vector<double> grad_norms = {};
  /// These three are empty without log-probabilities at sampling. Tokens by pi / mu (kRatioBounds),
  std::vector<int64_t> ratio_counts = {};
  /// their mismatch KL by position in the sample (kPositionBounds),
  std::vector<MismatchPart> by_position = {};
  /// and by versions between the token and the step (kDistanceBounds). No counts: the versions of
  /// the tokens are not known.
  std::vector<MismatchPart> by_distance = {};

  template <class F>
  static void fields(F& f) {
    using M = StepMeasures;
    f("flops", &M::flops)("peak_flops", &M::peak_flops)("teacher_kl", &M::teacher_kl)(
        "teacher_mass", &M::teacher_mass)("grad_norms", &M::grad_norms)(
        "ratio_counts", &M::ratio_counts)("by_position", &M::by_position)("by_distance",
                                                                          &M::by_distance);
  }
};

/// Sums of mismatch KL in buckets.
template <size_t N>
struct MismatchSums {
  std::array<double, N + 1> sums = {};
  BucketCounts<N> counts = {};

  void add(const std::array<double, N>& bounds, double at, double mismatch) {
    const size_t bucket = bucket_of(bounds, at);
    sums[bucket] += mismatch;
    ++counts[bucket];
  }
  std::vector<MismatchPart> parts() const;
};

/// Sums over the loss tokens of a step.
struct MeasureSums {
  BucketCounts<kRatioBounds.size()> ratios = {};
  MismatchSums<kPositionBounds.size()> by_position;
  MismatchSums<kDistanceBounds.size()> by_distance;

  /// `distance` below 0: not known.
  void add(int32_t position, int32_t distance, double ratio, double mismatch) {
    ++ratios[bucket_of(kRatioBounds, ratio)];
    by_position.add(kPositionBounds, position, mismatch);
    if (distance >= 0) by_distance.add(kDistanceBounds, distance, mismatch);
  }
  /// Writes counts and means.
  void write(StepMeasures& measures) const;
};

/// optim/grad_norm/GROUP, teacher_kl/top_k/mean, teacher_mass/top_k/mean, the histogram ratio/all,
/// mismatch_kl/position/le_BOUND and mismatch_kl/distance/le_BOUND; nothing for what was not
/// measured.
void add_measures(const StepMeasures& measures, MetricValues& values);

}  // namespace primerl
