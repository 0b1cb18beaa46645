#include "kernels/common/gradient_norms.h"

#include <cmath>

#include "kernels/common/parallel.h"
#include "kernels/ops/ops.h"

namespace primerl {

GradientGroup group_of(ParameterKind kind) {
  switch (kind) {
    case ParameterKind::kEmbedding:
      return GradientGroup::kEmbeddings;
    case ParameterKind::kHead:
      return GradientGroup::kHead;
    case ParameterKind::kNorm:
      return GradientGroup::kNorms;
    case ParameterKind::kAttention:
      return GradientGroup::kAttention;
    case ParameterKind::kMlp:
    case ParameterKind::kExperts:
    case ParameterKind::kSharedExpert:
    case ParameterKind::kRouter:
      return GradientGroup::kMlp;
  }
  return GradientGroup::kMlp;
}

std::vector<double> squares_of_parameters(const TensorTable& table, const float* gradients) {
  std::vector<const Parameter*> trained;
  for (const Parameter& parameter : table.parameters())
    if (parameter.is_trained) trained.push_back(&parameter);
  std::vector<double> squares(trained.size());
  share_tasks(static_cast<int64_t>(trained.size()), table.trained_count(), [&](int64_t i) {
    const Parameter& parameter = *trained[static_cast<size_t>(i)];
    squares[static_cast<size_t>(i)] =
        cpu_ops().sum_of_squares(gradients + parameter.offset, parameter.count);
  });
  return squares;
}

std::vector<double> norms_by_group(const TensorTable& table, const std::vector<double>& squares) {
  if (squares.empty()) return {};
  std::vector<double> norms(kGradientGroups.size());
  size_t next = 0;
  for (const Parameter& parameter : table.parameters())
    if (parameter.is_trained && next < squares.size())
      norms[static_cast<size_t>(group_of(parameter.kind))] += squares[next++];
  for (double& norm : norms) norm = std::sqrt(norm);
  return norms;
}

}  // namespace primerl
