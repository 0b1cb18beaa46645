/// The Learner on the CPU (learner_core.h), on libtorch: the decoder forward and backward, and the
/// optimizer in fp32 (optimizer.h).
///
/// Engines of the process may share frozen weights (frozen_weights.h), which have no gradients and
/// no moments. With invariant numerics a step has the same bits for any number of compute threads,
/// and beside any other steps.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "kernels/common/learner_core.h"
#include "kernels/cpu/weights/frozen_weights.h"

namespace primerl {

class CpuLearner final : public LearnerCore {
 public:
  /// Trains whole weights; a batch may be of any tenant.
  CpuLearner(const LearnerOptions& options, ModelFolder model);
  /// Trains an adapter on `base` for each of `adapters`, which are valid and of different tenants.
  /// Each has its own loss, optimizer and schedule; those of `options` are ignored. `base_folder`
  /// is that of `model` and of `base`, which is flat if numerics are fast.
  CpuLearner(const LearnerOptions& options, ModelFolder model, std::string base_folder,
             std::shared_ptr<const FrozenWeights> base, std::span<const AdapterTraining> adapters);
};

}  // namespace primerl
