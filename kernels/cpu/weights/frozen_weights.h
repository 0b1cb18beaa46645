/// The weights of a model folder that stay as they are, on the CPU: what engines with adapter slots
/// and learners of adapters multiply by, forward and backward.
///
/// They are packed (weights.h), so that those of an engine and of a learner are the same ones. A
/// learner of fast numerics alone has them flat, as the vendor's products read them, and for
/// itself. Immutable after they are loaded: any thread reads them.
#pragma once

#include <filesystem>
#include <memory>

#include "kernels/cpu/weights/weights.h"
#include "kernels/models/frozen_bases.h"
#include "kernels/models/tensors.h"

namespace primerl {

class FrozenWeights final : public FrozenBase {
 public:
  FrozenWeights(const ModelConfig& config, Numerics numerics, DecoderWeights::Use use)
      : table_(config), weights_(table_, numerics, use) {}

  const DecoderWeights& weights() const { return weights_; }
  /// While nobody else has them.
  DecoderWeights& weights() { return weights_; }

 private:
  const TensorTable table_;
  DecoderWeights weights_;
};

/// Those of `folder`, which was read as `config`: the ones in `bases`, which loads them where
/// nobody holds them. `bases` may be null: then nobody else will have them.
Result<std::shared_ptr<const FrozenWeights>> frozen_weights(FrozenBases* bases,
                                                            const std::filesystem::path& folder,
                                                            const ModelConfig& config);

/// The same, apart from all others. `flat`: as the vendor's products read them.
Result<std::shared_ptr<const FrozenWeights>> load_frozen_weights(
    const std::filesystem::path& folder, const ModelConfig& config, bool flat);

/// Random ones, as `config` wants them (randomize_parameters()).
Result<std::shared_ptr<const FrozenWeights>> random_frozen_weights(uint64_t seed,
                                                                   const ModelConfig& config,
                                                                   bool flat);

}  // namespace primerl
