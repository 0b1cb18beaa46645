#include "kernels/torch/cuda/weights.h"

#include <ATen/ops/zeros.h>

namespace primerl {
CardWeights::CardWeights(const TensorTable& table, at::ScalarType type, const CardStream& stream,
                         bool has_second_set)
    : table_(table),
      type_(type),
      stream_(stream),
      flat_(at::zeros({table.count()}, at::TensorOptions(stream.device()).dtype(type))),
      upload_(type, stream.device()) {
  if (has_second_set) stage_.emplace(table, flat_, upload_);
}

at::Tensor CardWeights::tensor(std::string_view name) const {
  const Parameter* parameter = table_.find(name);
  if (parameter == nullptr) return {};
  return flat_.narrow(0, parameter->offset, parameter->count).view(parameter->shape);
}

const void* CardWeights::data(std::string_view name) const {
  const at::Tensor found = tensor(name);
  return found.defined() ? found.const_data_ptr() : nullptr;
}

CardLinear CardWeights::linear(std::string_view name) const {
  const at::Tensor matrix = tensor(name);
  if (!matrix.defined()) return {};
  return {matrix.t(), tensor(std::string(name) + "_bias")};
}

/// The upload has a stream of its own: the buffer must be nobody's by then.
Status CardWeights::load(const std::vector<WeightTensor>& tensors) {
  if (stage_.has_value()) stage_->stop();
  ASSIGN_OR_RETURN(const auto match, match_tensors(table_, tensors));
  RETURN_IF_ERROR(stream_.wait());
  return upload_.run(match, flat_, {});
}

/// A snapshot that is not the model's is apply()'s to refuse, and one that is older than what is
/// being prepared is applied as it is: two actors may be behind each other for a while.
bool CardWeights::prepare(const std::shared_ptr<const WeightSnapshot>& snapshot) {
  if (!stage_.has_value()) return true;
  if (stage_->holds(*snapshot)) return stage_->is_done();
  if (stage_->is_newer_than(*snapshot)) return true;
  return !stage_->begin(snapshot).ok();
}

/// A copy within the device reads and writes each byte once. The second set stays as it is until
/// that is done, and so is free for the next version.
Status CardWeights::apply(const WeightSnapshot& snapshot) {
  if (!stage_.has_value() || !stage_->holds(snapshot)) return load(snapshot.tensors);
  RETURN_IF_ERROR(stage_->wait());
  RETURN_IF_ERROR(stream_.copy(flat_.mutable_data_ptr(), stage_->flat().const_data_ptr(),
                               static_cast<size_t>(flat_.nbytes())));
  const Status copied = stream_.wait();
  stage_->stop();
  return copied;
}

}  // namespace primerl
