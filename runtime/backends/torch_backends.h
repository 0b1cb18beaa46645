/// What libtorch adds to the backends of a program. primerl-worker links torch_backends.cc; where
/// it is left out, a weak definition in backends.cc says that there is nothing.
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
  /// `tokenizer` is for stop texts. With adapter slots its weights are among `bases`. Both may be
  /// null.
  Result<std::unique_ptr<Engine>> (*make_engine)(const EngineOptions& options,
                                                 const std::string& model_folder,
                                                 std::shared_ptr<const Tokenizer> tokenizer,
                                                 FrozenBases* bases);
  Result<std::unique_ptr<Learner>> (*make_learner)(const LearnerOptions& options,
                                                   const std::string& model_folder);
  /// Its weights stay as they are, and are among `bases`, which may be null; it trains `adapters`
  /// on them (make_torch_adapter_learner()).
  Result<std::unique_ptr<Learner>> (*make_adapter_learner)(
      const LearnerOptions& options, std::span<const AdapterTraining> adapters,
      const std::string& model_folder, FrozenBases* bases);
  /// "" when an "engine" or a "learner" can compute on `device`.
  std::string (*why_not_on)(const std::string& device, const std::string& kind);
  /// By what they compute on `device` where that is not the fast way; "" else.
  std::string (*slow_way_on)(const std::string& device);
  /// Bytes of `options.device` that one needs (kernels/devices/make.h).
  Result<DeviceBytes> (*engine_bytes)(const EngineOptions& options,
                                      const std::string& model_folder);
  Result<DeviceBytes> (*learner_bytes)(const LearnerOptions& options,
                                       std::span<const AdapterTraining> adapters,
                                       const std::string& model_folder);
  /// What a device that can be used has free.
  Result<DeviceRoom> (*room_on)(const std::string& device);
  /// For weights that stay on `device`, which why_not_on() has nothing against; null: on the CPU.
  std::shared_ptr<DeviceMemory> (*device_memory)(const std::string& device);
};

/// Null in a program without libtorch.
const TorchBackends* torch_backends();

}  // namespace primerl
