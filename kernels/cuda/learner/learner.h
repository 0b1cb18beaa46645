/// The Learner on one CUDA device (learner_core.h): a decoder forward and backward, clip, and an
/// optimizer (optimizer.h). It trains whole weights, for any tenant, or adapters of several tenants
/// on frozen weights.
///
/// Computes in bf16 or fp32; masters, moments, gradients, logits and losses are fp32. Files and the
/// tensors of snapshots are those of CpuLearner, so that a checkpoint continues on either device.
/// Numerics are "fast": GEMMs are the vendor's. Steps of several adapters share passes; other
/// tenants change only the last bits of a step's GEMMs. If CUBLAS_WORKSPACE_CONFIG is set as
/// libtorch requires, a repeated step is equal to the bit; docs/design/cuda.md describes the other
/// case. A step beyond the device's memory is an error and leaves the learner unchanged. One
/// thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/common/learner_core.h"
#include "kernels/cuda/device/stream.h"
#include "kernels/cuda/memory/frozen_base.h"
#include "kernels/engine/device_room.h"

namespace primerl {

class CudaLearner final : public LearnerCore {
 public:
  /// As called by make_cuda_learner(), under a Use of `stream`, of which it keeps a copy.
  CudaLearner(const LearnerOptions& options, ModelFolder model, const CudaStream& stream);
  /// Trains an adapter for each of `adapters`. They are valid, of different tenants, and supported
  /// by LearnerAdapters. `folder` is that of `model`, `base` its weights.
  CudaLearner(const LearnerOptions& options, ModelFolder model, std::string folder,
              std::shared_ptr<const CudaFrozenBase> base, std::span<const AdapterTraining> adapters,
              const CudaStream& stream);
};

/// The bytes that make_cuda_learner() compares with the free memory.
DeviceBytes cuda_learner_bytes(const LearnerOptions& options, const ModelConfig& config,
                               std::span<const AdapterTraining> adapters);

/// `options` and `adapters` were checked, `model` is supported; the error names anything that a
/// device cannot compute. `tensors` are those of the folder `base`, or empty: then weights are
/// random. Without `adapters` it trains whole weights; with them, the frozen weights are in
/// `bases`, which may be null.
Result<std::unique_ptr<Learner>> make_cuda_learner(const LearnerOptions& options, ModelFolder model,
                                                   const std::vector<WeightTensor>* tensors,
                                                   const std::string& base,
                                                   std::span<const AdapterTraining> adapters,
                                                   FrozenBases* bases);

}  // namespace primerl
