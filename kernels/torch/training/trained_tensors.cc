#include "kernels/torch/training/trained_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/ops/ops.h"
#include "kernels/torch/memory.h"
#include "kernels/torch/parallel.h"
#include "kernels/torch/training/optimizer_state.h"

namespace primerl {
namespace {

constexpr int64_t kPartOfSquares = int64_t{1} << 16;  // their sums are added in order

}  // namespace

TrainedTensors::TrainedTensors(const TensorTable& table, at::Tensor weights)
    : table_(table),
      weights_(std::move(weights)),
      gradients_(zero_floats(table.count())),
      first_moments_(zero_floats(table.count())),
      second_moments_(zero_floats(table.count())) {}

std::string TrainedTensors::broken_gradient() const {
  const float* gradients = gradients_.const_data_ptr<float>();
  for (const auto& slice : table_.slices())
    for (int64_t i = 0; i < slice.count; ++i)
      if (!std::isfinite(gradients[slice.offset + i]))
        return fmt::format("'{}' ({} at element {})", slice.name, gradients[slice.offset + i], i);
  return "none of the tensors";
}

double TrainedTensors::gradient_norm() {
  const float* gradients = gradients_.const_data_ptr<float>();
  const int64_t count = table_.trained_count();
  const int64_t parts = (count + kPartOfSquares - 1) / kPartOfSquares;
  squares_.resize(static_cast<size_t>(parts));
  share(parts, count, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      squares_[static_cast<size_t>(i)] = cpu_ops().sum_of_squares(
          gradients + i * kPartOfSquares, std::min(kPartOfSquares, count - i * kPartOfSquares));
  });
  double sum = 0;
  for (const double part : squares_) sum += part;
  return std::sqrt(sum);
}

void TrainedTensors::update(const OptimizerOptions& options, TrainReport& report) {
  report.grad_norm = gradient_norm();
  if (!std::isfinite(report.grad_norm) || !std::isfinite(report.loss)) {
    report.skipped = true;
    report.skip_reason = fmt::format("the gradient is not finite (norm {}, loss {}), first in {}",
                                     report.grad_norm, report.loss, broken_gradient());
    return;
  }
  ++num_steps_;
  const double max_norm = options.max_norm;
  const bool clip = max_norm > 0 && report.grad_norm > max_norm;
  const auto steps = static_cast<double>(num_steps_);
  share(
      table_.trained_count(), 8 * table_.trained_count(),
      [&](int64_t begin, int64_t end) {
        cpu_ops().adamw(
            {.count = end - begin,
             .weights = weights_.mutable_data_ptr<float>() + begin,
             .gradients = gradients_.const_data_ptr<float>() + begin,
             .first_moments = first_moments_.mutable_data_ptr<float>() + begin,
             .second_moments = second_moments_.mutable_data_ptr<float>() + begin,
             .gradient_scale = clip ? static_cast<float>(max_norm / report.grad_norm) : 1.0F,
             .lr = static_cast<float>(report.learning_rate),
             .weight_decay = static_cast<float>(options.weight_decay),
             .beta1 = static_cast<float>(options.beta1),
             .beta2 = static_cast<float>(options.beta2),
             .epsilon = static_cast<float>(options.epsilon),
             .correction1 = static_cast<float>(1 - std::pow(options.beta1, steps)),
             .correction2 = static_cast<float>(1 - std::pow(options.beta2, steps))});
      },
      64);
}

std::vector<WeightTensor> TrainedTensors::copy_weights() const {
  return copy_parameters(table_, weights());
}

std::vector<WeightTensor> TrainedTensors::copy_gradients() const {
  auto all = copy_parameters(table_, gradients_.const_data_ptr<float>());
  // One tensor a slice, in their order.
  size_t next = 0;
  std::erase_if(all, [&](const WeightTensor&) {
    return !table_.parameters()[table_.slices()[next++].parameter].is_trained;
  });
  return all;
}

Status TrainedTensors::save(const std::filesystem::path& folder) const {
  const OptimizerState state{num_steps_, first_moments_.const_data_ptr<float>(),
                             second_moments_.const_data_ptr<float>()};
  return write_optimizer_state(folder, table_, state);
}

Status TrainedTensors::load(const std::vector<WeightTensor>& tensors,
                            const std::filesystem::path& folder) {
  const at::Tensor weights = zero_floats(table_.count());
  const at::Tensor first = zero_floats(table_.count());
  const at::Tensor second = zero_floats(table_.count());
  RETURN_IF_ERROR(fill_parameters(table_, tensors, weights.mutable_data_ptr<float>()));
  ASSIGN_OR_RETURN(const int64_t num_steps,
                   read_optimizer_state(folder, table_, first.mutable_data_ptr<float>(),
                                        second.mutable_data_ptr<float>()));
  weights_.copy_(weights);
  first_moments_.copy_(first);
  second_moments_.copy_(second);
  num_steps_ = num_steps;
  return ok();
}

}  // namespace primerl
