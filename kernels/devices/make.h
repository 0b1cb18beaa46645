/// Factories of the torch engine and learner; callers do not include torch.
///
/// Create, use and destroy the result on one thread: `options.threads` (0 means 1) is set for the
/// calling thread. Reads `config.json` and the safetensors files of a Hugging Face folder; every
/// error names the file. Exceptions of libtorch become Code::kInternal.
#pragma once

#include <filesystem>
#include <memory>
#include <span>

#include "kernels/engine/device_room.h"
#include "kernels/engine/engine.h"
#include "kernels/engine/options.h"
#include "kernels/models/frozen_bases.h"
#include "kernels/text/tokenizer.h"
#include "kernels/train/adapter_training.h"
#include "kernels/train/learner.h"
#include "kernels/train/options.h"

namespace primerl {

/// `tokenizer` is the folder's, for requests with stop texts; without one they are refused. With
/// adapter slots it shares the folder's weights with others that use the same `bases`, which may be
/// null.
Result<std::unique_ptr<Engine>> make_torch_engine(
    const EngineOptions& options, const std::filesystem::path& model_folder,
    std::shared_ptr<const Tokenizer> tokenizer = nullptr, FrozenBases* bases = nullptr);

/// Bytes that the engine or learner of a folder needs on `options.device`, as compared with the
/// free memory when it is made; zero on the CPU. Without `adapters` it trains whole weights.
Result<DeviceBytes> engine_device_bytes(const EngineOptions& options,
                                        const std::filesystem::path& model_folder);
Result<DeviceBytes> learner_device_bytes(const LearnerOptions& options,
                                         std::span<const AdapterTraining> adapters,
                                         const std::filesystem::path& model_folder);

Result<std::unique_ptr<Learner>> make_torch_learner(const LearnerOptions& options,
                                                    const std::filesystem::path& model_folder);

/// Trains only adapters, of up to kAdaptersOfLearnerMax different tenants: a batch trains the
/// adapter of its tenant. The folder's weights are frozen and are in `bases`, which may be null; on
/// the CPU with numerics = "fast" it has its own copy. Loss, optimizer and schedule of `options`
/// are ignored: each adapter has its own.
Result<std::unique_ptr<Learner>> make_torch_adapter_learner(
    const LearnerOptions& options, std::span<const AdapterTraining> adapters,
    const std::filesystem::path& model_folder, FrozenBases* bases = nullptr);

}  // namespace primerl
