#include "kernels/weights/device_weights.h"

#include <utility>

#include "kernels/weights/manifest.h"

namespace primerl {

Result<Blob> DeviceWeights::bytes() const {
  const std::lock_guard lock(mutex_);
  auto held = bytes_.lock();
  if (held == nullptr) {
    auto read = std::make_shared<std::vector<std::byte>>(buffer_->num_bytes());
    RETURN_IF_ERROR(buffer_->read(0, *read));
    held = std::move(read);
    bytes_ = held;
  }
  const std::span<const std::byte> all(*held);
  return Blob(std::move(held), all);
}

Status check_device_weights(const WeightSnapshot& snapshot) {
  const DeviceWeights& device = *snapshot.device;
  if (device.offsets().size() != snapshot.tensors.size())
    return error(Code::kInvalid, "{} has {} tensors and {} offsets on its device", snapshot.name(),
                 snapshot.tensors.size(), device.offsets().size());
  const uint64_t available = device.buffer().num_bytes();
  for (size_t i = 0; i < snapshot.tensors.size(); ++i) {
    const WeightTensor& tensor = snapshot.tensors[i];
    const TensorFacts facts{tensor.name, tensor.type, tensor.shape};
    ASSIGN_OR_RETURN(const uint64_t needed, num_bytes(facts));
    const uint64_t offset = device.offsets()[i];
    if (tensor.bytes.empty() && offset <= available && needed <= available - offset) continue;
    return error(
        Code::kInvalid,
        "tensor '{}', {}, should be in a device buffer of {} bytes from byte {} on, and has "
        "{} bytes on the host",
        tensor.name, describe(facts), available, offset, tensor.bytes.size());
  }
  return ok();
}

Result<std::vector<WeightTensor>> tensors_on_host(const WeightSnapshot& snapshot) {
  std::vector<WeightTensor> tensors = snapshot.tensors;
  if (snapshot.device == nullptr) return tensors;
  RETURN_IF_ERROR(check_device_weights(snapshot));
  auto read = snapshot.device->bytes();
  if (!read.ok())
    return std::move(read).error().while_doing(
        fmt::format("copying {} from its device", snapshot.name()));
  const auto all = std::make_shared<const Blob>(std::move(read).value());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t offset = snapshot.device->offsets()[i];
    const TensorFacts facts{tensors[i].name, tensors[i].type, tensors[i].shape};
    tensors[i].bytes = Blob(all, all->bytes().subspan(offset, num_bytes(facts).value()));
  }
  return tensors;
}

Result<std::shared_ptr<const WeightSnapshot>> on_host(
    std::shared_ptr<const WeightSnapshot> snapshot) {
  if (snapshot == nullptr || snapshot->device == nullptr) return snapshot;
  auto same = std::make_shared<WeightSnapshot>();
  same->key = snapshot->key;
  same->version = snapshot->version;
  ASSIGN_OR_RETURN(same->tensors, tensors_on_host(*snapshot));
  return std::shared_ptr<const WeightSnapshot>(std::move(same));
}

}  // namespace primerl
