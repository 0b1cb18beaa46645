/// The torch engine and learner, made without showing torch to whoever makes them.
///
/// Create, use and destroy the result on one thread: `options.threads` (0 means 1) is set for the
/// calling thread. Reads `config.json` and the safetensors files of a Hugging Face folder (qwen3 or
/// llama); every error names the file. Exceptions of libtorch come back as Code::kInternal.
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
/// adapter slots it holds the folder's weights together with others that were given `bases`, which
/// may be null.
Result<std::unique_ptr<Engine>> make_torch_engine(
    const EngineOptions& options, const std::filesystem::path& model_folder,
    std::shared_ptr<const Tokenizer> tokenizer = nullptr, FrozenBases* bases = nullptr);

/// Bytes that the engine or learner of a folder needs of `options.device`, as they are held against
/// what is free there when it is made; none on the CPU. Without `adapters` it trains the whole
/// weights.
Result<DeviceBytes> engine_device_bytes(const EngineOptions& options,
                                        const std::filesystem::path& model_folder);
Result<DeviceBytes> learner_device_bytes(const LearnerOptions& options,
                                         std::span<const AdapterTraining> adapters,
                                         const std::filesystem::path& model_folder);

Result<std::unique_ptr<Learner>> make_torch_learner(const LearnerOptions& options,
                                                    const std::filesystem::path& model_folder);

/// Trains adapters alone, of up to kAdaptersOfLearnerMax different tenants: a batch is stepped by
/// the adapter of its tenant. The folder's weights stay as they are, and are those of `bases`,
/// which may be null; on the CPU with numerics = "fast" it has its own. Loss, optimizer and
/// schedule of `options` do not count: each adapter has its own.
Result<std::unique_ptr<Learner>> make_torch_adapter_learner(
    const LearnerOptions& options, std::span<const AdapterTraining> adapters,
    const std::filesystem::path& model_folder, FrozenBases* bases = nullptr);

}  // namespace primerl
