#include "kernels/cuda/memory/weight_stage.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

#include "kernels/common/boundary.h"

namespace primerl {

bool has_selection_biases(const TensorTable& table) {
  return std::ranges::any_of(table.parameters(), [](const Parameter& parameter) {
    return parameter.name.ends_with(".selection_bias");
  });
}

std::optional<at::ScalarType> type_on_device(const TensorTable& table,
                                             const WeightSnapshot& snapshot) {
  const auto slices = table.slices();
  if (snapshot.device == nullptr || snapshot.tensors.empty() ||
      slices.size() != snapshot.tensors.size())
    return std::nullopt;
  const DataType type = snapshot.tensors.front().type;
  if (type != DataType::kF32 && type != DataType::kBF16) return std::nullopt;
  const uint64_t size = size_in_bytes(type);
  const DeviceWeights& device = *snapshot.device;
  if (device.buffer().num_bytes() != static_cast<uint64_t>(table.count()) * size)
    return std::nullopt;
  for (size_t i = 0; i < slices.size(); ++i) {
    const WeightTensor& tensor = snapshot.tensors[i];
    if (tensor.type != type || tensor.name != slices[i].name || tensor.shape != slices[i].shape ||
        device.offsets()[i] != static_cast<uint64_t>(slices[i].offset) * size)
      return std::nullopt;
  }
  return type == DataType::kF32 ? at::kFloat : at::kBFloat16;
}

bool has_same_layout(const TensorTable& table, at::ScalarType type,
                     const WeightSnapshot& snapshot) {
  return type_on_device(table, snapshot) == type;
}

WeightStage::WeightStage(const TensorTable& table, const at::Tensor& like, WeightUpload& upload)
    : table_(table), upload_(upload), flat_(at::zeros_like(like)) {}

Status WeightStage::begin(const std::shared_ptr<const WeightSnapshot>& snapshot) {
  stop();
  if (snapshot->device == nullptr) RETURN_IF_ERROR(match_tensors(table_, snapshot->tensors));
  snapshot_ = snapshot;
  is_done_.store(false, std::memory_order_release);
  thread_ = std::jthread([this](const std::stop_token& stop) {
    outcome_ = at_boundary("new weights", [&] { return fill(stop); });
    is_done_.store(true, std::memory_order_release);
  });
  return ok();
}

Status WeightStage::fill(const std::stop_token& stop) {
  if (has_same_layout(table_, flat_.scalar_type(), *snapshot_))
    return upload_.take(snapshot_->device->buffer(), flat_);
  ASSIGN_OR_RETURN(const auto tensors, tensors_on_host(*snapshot_));
  ASSIGN_OR_RETURN(const auto match, match_tensors(table_, tensors));
  return upload_.run(match, flat_, stop);
}

bool WeightStage::holds(const WeightSnapshot& snapshot) const {
  return snapshot_ != nullptr && snapshot.device == snapshot_->device &&
         std::ranges::equal(snapshot.tensors, snapshot_->tensors,
                            [](const WeightTensor& a, const WeightTensor& b) {
                              return a.bytes.bytes().data() == b.bytes.bytes().data() &&
                                     a.bytes.size() == b.bytes.size() && a.name == b.name;
                            });
}

/// The thread always ends: each of its waits has a deadline.
Status WeightStage::wait() {
  if (thread_.joinable()) thread_.join();
  Status outcome = std::exchange(outcome_, ok());
  if (!outcome.ok()) snapshot_ = nullptr;
  return outcome;
}

void WeightStage::stop() {
  thread_.request_stop();
  static_cast<void>(wait());
  snapshot_ = nullptr;
}

}  // namespace primerl
