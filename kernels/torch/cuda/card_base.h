/// The weights of a model folder that stay as they are, on one device: what engines with adapter
/// slots and learners of adapters multiply by there.
///
/// Those of one process that have the same folder, device and type of numbers hold one set
/// together (frozen_bases.h). It is on the device before anybody else sees it, and is not written
/// any more, so that each reads it on its own stream. Who lets go of it has waited for that stream
/// before, since its memory may be used again at once. Made on the thread and under the
/// CardStream::Use of the first who holds it; read by any.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/models/frozen_bases.h"
#include "kernels/torch/cuda/weights.h"

namespace primerl {

class CardBase final : public FrozenBase {
 public:
  /// All weights are 0.
  CardBase(const ModelConfig& config, at::ScalarType type, const CardStream& stream)
      : table_(config), stream_(stream), weights_(table_, type, stream_, false) {}

  const CardWeights& weights() const { return weights_; }
  /// While nobody else has it. They are on the device when it returns.
  Status load(const std::vector<WeightTensor>& tensors) { return weights_.load(tensors); }

 private:
  const TensorTable table_;
  const CardStream stream_;
  CardWeights weights_;
};

/// "float32" or "bfloat16".
std::string_view name_of(at::ScalarType type);
/// And back; what "auto" stands for on a device is bf16.
at::ScalarType type_named(std::string_view dtype);

/// The base of `folder`, which was read as `config` and whose tensors are `tensors`: the one in
/// `bases`, or made and put there. `bases` may be null: then nobody else will have it. `check_room`
/// is asked once, before something is made: whether the device has room for what is still to come,
/// of which the base is a part, or is there already.
Result<std::shared_ptr<const CardBase>> card_base(
    FrozenBases* bases, const std::filesystem::path& folder, const ModelConfig& config,
    const std::vector<WeightTensor>& tensors, at::ScalarType type, const CardStream& stream,
    const std::function<Status(bool is_base_there)>& check_room);

}  // namespace primerl
