/// The frozen weights of a model folder on the CPU, used forward and backward by engines with
/// adapter slots and learners of adapters.
///
/// They are packed (weights.h), so that engines and learners can share them. Only a learner with
/// fast numerics has them flat, as libtorch's GEMMs read them, and does not share them. Those in
/// bf16, or rounded to FP8, are shared with each other only. Immutable after loading: any thread
/// may read them.
#pragma once

#include <filesystem>
#include <memory>

#include "kernels/cpu/weights/weights.h"
#include "kernels/models/frozen_bases.h"
#include "kernels/models/tensors.h"

namespace primerl {

class FrozenWeights final : public FrozenBase {
 public:
  FrozenWeights(const ModelConfig& config, Numerics numerics, DecoderWeights::Use use,
                GemmNumbers numbers = GemmNumbers::kDtype)
      : table_(config), weights_(table_, numerics, use, numbers) {}

  const DecoderWeights& weights() const { return weights_; }
  /// Only while no other object shares them.
  DecoderWeights& weights() { return weights_; }

 private:
  const TensorTable table_;
  DecoderWeights weights_;
};

/// The weights of `folder`, with its `config`: those in `bases`, which loads them if they are
/// missing. With null `bases` they are not shared.
Result<std::shared_ptr<const FrozenWeights>> frozen_weights(
    FrozenBases* bases, const std::filesystem::path& folder, const ModelConfig& config,
    GemmNumbers numbers = GemmNumbers::kDtype);

/// The same, not shared. `flat`: in the layout that libtorch's GEMMs read.
Result<std::shared_ptr<const FrozenWeights>> load_frozen_weights(
    const std::filesystem::path& folder, const ModelConfig& config, bool flat,
    GemmNumbers numbers = GemmNumbers::kDtype);

/// Random weights as `config` describes (randomize_parameters()).
Result<std::shared_ptr<const FrozenWeights>> random_frozen_weights(uint64_t seed,
                                                                   const ModelConfig& config,
                                                                   bool flat, GemmNumbers numbers);

}  // namespace primerl
