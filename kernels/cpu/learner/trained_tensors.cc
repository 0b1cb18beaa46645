#include "kernels/cpu/learner/trained_tensors.h"

#include <algorithm>
#include <utility>

#include "kernels/common/memory.h"
#include "kernels/common/parallel.h"
#include "kernels/cpu/learner/optimizer_device.h"

namespace primerl {

TrainedTensors::TrainedTensors(const TensorTable& table, at::Tensor weights,
                               const OptimizerOptions& options)
    : table_(table),
      weights_(std::move(weights)),
      gradients_(zero_floats(table.count())),
      optimizer_(std::make_unique<Optimizer>(
          options, table, table, OptimizerBuffers{weights_, gradients_, {}},
          std::make_unique<CpuOptimizerDevice>(table, gradients_))),
      copies_(table.count()) {}

std::vector<WeightTensor> TrainedTensors::copy_weights() {
  const std::shared_ptr<float> copy = copies_.take();
  const float* numbers = weights();
  share(table_.count(), table_.count(), [&](int64_t begin, int64_t end) {
    std::copy(numbers + begin, numbers + end, copy.get() + begin);
  });
  return view_parameters(table_, copy.get(), copy);
}

LearnerCopy TrainedTensors::capture() {
  return {copy_weights(), optimizer_->copy_state(), optimizer_->header()};
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

Status TrainedTensors::load(const std::vector<WeightTensor>& tensors,
                            const std::filesystem::path& folder) {
  // The state is checked before any value is written: a separate copy would need as much memory
  // again.
  ASSIGN_OR_RETURN(const OptimizerState state, optimizer_->read(folder));
  RETURN_IF_ERROR(fill_parameters(table_, tensors, weights_.mutable_data_ptr<float>()));
  optimizer_->set_state(state);
  return ok();
}

}  // namespace primerl
