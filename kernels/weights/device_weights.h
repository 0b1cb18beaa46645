/// DeviceWeights: the weights of a snapshot in the memory of the device that computed them.
///
/// They are in one buffer, each tensor of the snapshot at its own offset, so that an engine with
/// the same layout copies them at once. They were written before the snapshot existed, and are not
/// overwritten while it is referenced. Code that needs their bytes on the host calls on_host(): it
/// copies them once for all owners at that time. Immutable; thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "kernels/weights/device_memory.h"
#include "kernels/weights/snapshot.h"

namespace primerl {

class DeviceWeights {
 public:
  using Buffers = std::vector<std::weak_ptr<const DeviceBuffer>>;

  /// `offsets`: offset of each tensor of the snapshot, in bytes, in their order. `next`: the
  /// buffers of later versions, if known.
  DeviceWeights(std::shared_ptr<const DeviceBuffer> buffer, std::vector<uint64_t> offsets,
                Buffers next = {})
      : buffer_(std::move(buffer)), offsets_(std::move(offsets)), next_(std::move(next)) {}

  const DeviceBuffer& buffer() const { return *buffer_; }
  std::shared_ptr<const DeviceBuffer> shared_buffer() const { return buffer_; }
  std::span<const uint64_t> offsets() const { return offsets_; }
  /// For receivers that prepare for later versions. The owner may free these buffers.
  const Buffers& next() const { return next_; }

  /// The whole buffer on the host; cached while it is referenced.
  Result<Blob> bytes() const;

 private:
  const std::shared_ptr<const DeviceBuffer> buffer_;
  const std::vector<uint64_t> offsets_;
  const Buffers next_;
  mutable std::mutex mutex_;  // guards the following members
  mutable std::weak_ptr<const std::vector<std::byte>> bytes_;
};

/// Checks that the tensors of `snapshot` are those in its DeviceWeights: without bytes, within the
/// buffer. kInvalid names the first that is not.
Status check_device_weights(const WeightSnapshot& snapshot);

/// The same weights with their bytes on the host; `snapshot` itself if it has them. Null for null.
Result<std::shared_ptr<const WeightSnapshot>> on_host(
    std::shared_ptr<const WeightSnapshot> snapshot);

/// The same, for tensors only: for callers without a pointer to the snapshot.
Result<std::vector<WeightTensor>> tensors_on_host(const WeightSnapshot& snapshot);

}  // namespace primerl
