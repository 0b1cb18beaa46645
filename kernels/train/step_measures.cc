#include "kernels/train/step_measures.h"

#include <fmt/format.h>

namespace primerl {
namespace {

void add_mismatch(std::string_view name, std::span<const double> bounds,
                  const std::vector<MismatchPart>& parts, MetricValues& values) {
  for (size_t i = 0; i < parts.size(); ++i)
    if (parts[i].count > 0)
      values.emplace_back(fmt::format("mismatch_kl/{}/le_{}", name, bound_text(bounds, i)),
                          parts[i].mean);
}

}  // namespace

std::string_view to_string(GradientGroup group) {
  static constexpr std::string_view kNames[] = {"embeddings", "attention", "mlp",
                                                "norms",      "head",      "adapters"};
  return kNames[static_cast<size_t>(group)];
}

template <size_t N>
std::vector<MismatchPart> MismatchSums<N>::parts() const {
  std::vector<MismatchPart> parts(N + 1);
  for (size_t i = 0; i < parts.size(); ++i)
    parts[i] = {counts[i] == 0 ? 0 : sums[i] / static_cast<double>(counts[i]), counts[i]};
  return parts;
}

void MeasureSums::write(StepMeasures& measures) const {
  measures.ratio_counts.assign(ratios.begin(), ratios.end());
  measures.by_position = by_position.parts();
  measures.by_distance = by_distance.parts();
}

void add_measures(const StepMeasures& measures, MetricValues& values) {
  for (size_t i = 0; i < measures.grad_norms.size(); ++i)
    if (measures.grad_norms[i] > 0)
      values.emplace_back(fmt::format("optim/grad_norm/{}", to_string(kGradientGroups[i])),
                          measures.grad_norms[i]);
  if (measures.teacher_mass > 0) {
    values.emplace_back("teacher_kl/top_k/mean", measures.teacher_kl);
    values.emplace_back("teacher_mass/top_k/mean", measures.teacher_mass);
  }
  add_histogram("ratio/all", kRatioBounds, measures.ratio_counts, values);
  add_mismatch("position", kPositionBounds, measures.by_position, values);
  add_mismatch("distance", kDistanceBounds, measures.by_distance, values);
}

}  // namespace primerl
