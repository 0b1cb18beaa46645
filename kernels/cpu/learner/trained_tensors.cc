#include "kernels/cpu/learner/trained_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/common/memory.h"
#include "kernels/common/parallel.h"
#include "kernels/common/step_report.h"
#include "kernels/ops/ops.h"
#include "kernels/train/optimizer_state.h"

namespace primerl {
namespace {

constexpr int64_t kPartOfSquares = int64_t{1} << 16;  // sums of parts are added in order

}  // namespace

TrainedTensors::TrainedTensors(const TensorTable& table, at::Tensor weights)
    : table_(table),
      weights_(std::move(weights)),
      gradients_(zero_floats(table.count())),
      first_moments_(zero_floats(table.count())),
      second_moments_(zero_floats(table.count())),
      copies_(table.count()) {}

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
  const AdamwArgs step = adamw_args(options, report, num_steps_);
  share(
      table_.trained_count(), 8 * table_.trained_count(),
      [&](int64_t begin, int64_t end) {
        AdamwArgs part = step;
        part.count = end - begin;
        part.weights = weights_.mutable_data_ptr<float>() + begin;
        part.gradients = gradients_.const_data_ptr<float>() + begin;
        part.first_moments = first_moments_.mutable_data_ptr<float>() + begin;
        part.second_moments = second_moments_.mutable_data_ptr<float>() + begin;
        cpu_ops().adamw(part);
      },
      64);
}

std::vector<WeightTensor> TrainedTensors::copy_weights() {
  const std::shared_ptr<float> copy = copies_.take();
  const float* from = weights();
  share(table_.count(), table_.count(), [&](int64_t begin, int64_t end) {
    std::copy(from + begin, from + end, copy.get() + begin);
  });
  return view_parameters(table_, copy.get(), copy);
}

std::vector<WeightTensor> TrainedTensors::copy_gradients() const {
  auto all = copy_parameters(table_, gradients_.const_data_ptr<float>());
  // One tensor per slice, in their order.
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
  // All are checked before any value is written: a separate copy would need as much memory again.
  if (const auto match = match_tensors(table_, tensors); !match.ok()) return match.error();
  ASSIGN_OR_RETURN(num_steps_,
                   read_optimizer_state(folder, table_, first_moments_.mutable_data_ptr<float>(),
                                        second_moments_.mutable_data_ptr<float>()));
  return fill_parameters(table_, tensors, weights_.mutable_data_ptr<float>());
}

}  // namespace primerl
