/// The backends that libtorch adds to a program. primerl-worker links torch_backends.cc. Without
/// that file, a weak definition in backends.cc returns null.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "graph/base/result.h"
#include "kernels/engine/device_room.h"
#include "kernels/engine/engine.h"
#include "kernels/engine/options.h"
#include "kernels/models/frozen_bases.h"
#include "kernels/text/tokenizer.h"
#include "kernels/train/adapter_training.h"
#include "kernels/train/learner.h"
#include "kernels/train/options.h"
#include "kernels/weights/device_memory.h"

namespace primerl {

struct TorchBackends {
  /// `tokenizer` is for stop texts. With adapter slots the frozen weights are shared through
  /// `bases`. Both may be null.
  Result<std::unique_ptr<Engine>> (*make_engine)(const EngineOptions& options,
                                                 const std::string& model_folder,
                                                 std::shared_ptr<const Tokenizer> tokenizer,
                                                 FrozenBases* bases);
  Result<std::unique_ptr<Learner>> (*make_learner)(const LearnerOptions& options,
                                                   const std::string& model_folder);
  /// A learner with frozen weights, shared through `bases`, which may be null. It trains `adapters`
  /// on them (make_torch_adapter_learner()).
  Result<std::unique_ptr<Learner>> (*make_adapter_learner)(
      const LearnerOptions& options, std::span<const AdapterTraining> adapters,
      const std::string& model_folder, FrozenBases* bases);
  /// Why an "engine" or a "learner" cannot compute on `device`; "": it can.
  std::string (*why_not_on)(const std::string& device, const std::string& kind);
  /// If computation on `device` is slow: which kernels it uses, and which would be fast. Otherwise
  /// "".
  std::string (*slow_way_on)(const std::string& device);
  /// Bytes of `options.device` that the resource needs (kernels/devices/make.h).
  Result<DeviceBytes> (*engine_bytes)(const EngineOptions& options,
                                      const std::string& model_folder);
  Result<DeviceBytes> (*learner_bytes)(const LearnerOptions& options,
                                       std::span<const AdapterTraining> adapters,
                                       const std::string& model_folder);
  /// The free memory of a device that can be used.
  Result<DeviceMemoryInfo> (*free_memory_on)(const std::string& device);
  /// For weights that stay on `device`; why_not_on() must be "" for it. Null: on the CPU.
  std::shared_ptr<DeviceMemory> (*device_memory)(const std::string& device);
};

/// Null in a program without libtorch.
const TorchBackends* torch_backends();

}  // namespace primerl
