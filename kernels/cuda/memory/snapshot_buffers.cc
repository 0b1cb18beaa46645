#include "kernels/cuda/memory/snapshot_buffers.h"

#include <fmt/format.h>

#include <utility>

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/memory/device_memory.h"

namespace primerl {

SnapshotBuffers::SnapshotBuffers(int32_t device_index, uint64_t num_bytes, int32_t buffers_max,
                                 double kept_bytes, double first_step_bytes)
    : device_index_(device_index),
      num_bytes_(num_bytes),
      kept_bytes_(kept_bytes),
      first_step_bytes_(first_step_bytes),
      pool_(make_cuda_memory(device_index), num_bytes, static_cast<size_t>(buffers_max)) {}

bool SnapshotBuffers::has_space() const {
  const auto facts = cuda_device_facts(device_index_);
  return facts.ok() &&
         facts->free_bytes >= static_cast<double>(num_bytes_) + kept_bytes_ + first_step_bytes_;
}

/// Engines open buffers before their first step, so all buffers must exist by then.
void SnapshotBuffers::make_all() {
  while (pool_.num_made() < pool_.buffers_max() && has_space() && pool_.make()) {
  }
}

std::shared_ptr<DeviceBuffer> SnapshotBuffers::take() {
  if (!std::exchange(were_made_, true)) make_all();
  const bool has_free = pool_.num_made() > pool_.num_held();
  auto buffer = has_free || has_space() ? pool_.take() : nullptr;
  if (buffer == nullptr) ++num_by_host_;
  return buffer;
}

std::string SnapshotBuffers::text() const {
  return fmt::format("{} buffers for engines, {} snapshots by the host", pool_.num_made(),
                     num_by_host_);
}

}  // namespace primerl
