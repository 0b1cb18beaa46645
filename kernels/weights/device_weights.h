/// DeviceWeights: the weights of a snapshot where they were made, in the memory of a device.
///
/// They lie in one buffer, each tensor of the snapshot from its own offset on, so that an engine
/// whose parameters lie alike takes them with one copy. They were written before the
/// snapshot existed, and are not written again while anybody holds it. Whoever needs their bytes on
/// the host says so with on_host(): they are copied then, and once for all who hold them at the
/// same time. Immutable; thread-safe.
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

  /// `offsets`: of each tensor of the snapshot, in bytes, in their order. `next`: where later
  /// versions will lie, as far as it is known.
  DeviceWeights(std::shared_ptr<const DeviceBuffer> buffer, std::vector<uint64_t> offsets,
                Buffers next = {})
      : buffer_(std::move(buffer)), offsets_(std::move(offsets)), next_(std::move(next)) {}

  const DeviceBuffer& buffer() const { return *buffer_; }
  std::shared_ptr<const DeviceBuffer> shared_buffer() const { return buffer_; }
  std::span<const uint64_t> offsets() const { return offsets_; }
  /// For who makes ready for later versions before they come. Their owner may free them.
  const Buffers& next() const { return next_; }

  /// All of the buffer on the host; kept as long as somebody holds it.
  Result<Blob> bytes() const;

 private:
  const std::shared_ptr<const DeviceBuffer> buffer_;
  const std::vector<uint64_t> offsets_;
  const Buffers next_;
  mutable std::mutex mutex_;  // of what follows
  mutable std::weak_ptr<const std::vector<std::byte>> bytes_;
};

/// Whether the tensors of `snapshot` are those that its DeviceWeights hold: without bytes, within
/// the buffer. kInvalid says which is not.
Status check_device_weights(const WeightSnapshot& snapshot);

/// The same weights with their bytes on the host; `snapshot` itself when it has them. A null
/// pointer stays one.
Result<std::shared_ptr<const WeightSnapshot>> on_host(
    std::shared_ptr<const WeightSnapshot> snapshot);

/// Likewise of tensors alone: for who has no pointer to the snapshot.
Result<std::vector<WeightTensor>> tensors_on_host(const WeightSnapshot& snapshot);

}  // namespace primerl
