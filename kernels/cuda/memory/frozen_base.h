/// The frozen weights of a model folder on one device, for engines with adapter slots and learners
/// of adapters.
///
/// Engines and learners of one process with the same folder, device and number type share one set
/// (frozen_bases.h). It is on the device before it is shared, and is not written again, so that
/// each owner reads it on its own stream. An owner waits for its stream before it releases the set,
/// since the memory may be reused at once. It is made on the thread and under the CudaStream::Use
/// of the first owner; any thread may read it.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/cuda/memory/weights.h"
#include "kernels/models/frozen_bases.h"

namespace primerl {

class CudaFrozenBase final : public FrozenBase {
 public:
  /// All weights are 0.
  CudaFrozenBase(const ModelConfig& config, at::ScalarType type, const CudaStream& stream)
      : table_(config), stream_(stream), weights_(table_, type, stream_, false) {}

  const CudaWeights& weights() const { return weights_; }
  /// Must be called before the set is shared. The weights are on the device when it returns.
  Status load(const std::vector<WeightTensor>& tensors) { return weights_.load(tensors); }

 private:
  const TensorTable table_;
  const CudaStream stream_;
  CudaWeights weights_;
};

/// "float32" or "bfloat16".
std::string_view name_of(at::ScalarType type);
/// The inverse; "auto" means bf16 on a device.
at::ScalarType type_named(std::string_view dtype);

/// The base of `folder`, with its `config` and `tensors`: the one in `bases`, or a new one that is
/// added there. With null `bases` it is not shared. `check_free_memory` is called once, before
/// anything is made: it checks that the device has enough free memory for all that follows. The
/// base is part of that, unless it is there already.
Result<std::shared_ptr<const CudaFrozenBase>> cuda_frozen_base(
    FrozenBases* bases, const std::filesystem::path& folder, const ModelConfig& config,
    const std::vector<WeightTensor>& tensors, at::ScalarType type, const CudaStream& stream,
    const std::function<Status(bool is_base_there)>& check_free_memory);

}  // namespace primerl
