/// Versions of the weights of a Qwen3 shape on a CUDA device, for the bench of weights on devices.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "kernels/weights/snapshot.h"

namespace primerl::bench {

using Snapshot = std::shared_ptr<const WeightSnapshot>;

/// Publishes versions of the weights on a CUDA device.
class Source {
 public:
  virtual ~Source() = default;
  virtual Snapshot next(int64_t version) = 0;
};

/// For "0.6b" those of a learner; for "8b" `buffers_max` buffers of that size, copied as a learner
/// does.
std::unique_ptr<Source> make_source(const std::string& shape, const std::filesystem::path& folder,
                                    int device_index, size_t buffers_max);

/// The folder of "0.6b" or "8b"; existing weights are kept.
void write_shape(const std::string& shape, const std::filesystem::path& folder);

}  // namespace primerl::bench
