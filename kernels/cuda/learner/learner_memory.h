/// The memory that a learner needs on a CUDA device, and the error if less is free. Plain functions
/// of options, any thread; bytes as doubles.
#pragma once

#include <cstdint>
#include <span>

#include "graph/base/result.h"
#include "kernels/cuda/device/cuda_devices.h"
#include "kernels/models/config.h"
#include "kernels/train/adapter_training.h"
#include "kernels/train/options.h"

namespace primerl {

/// Bytes of libtorch's workspaces, and of the rounding of its pool.
inline constexpr double kLearnerReserveBytes = 1e9;

struct LearnerBytes {
  double weights = 0, rows = 0, head = 0;
  double all() const { return weights + rows + head + kLearnerReserveBytes; }
};

/// The bytes for micro-batches of `rows` rows. Without `adapters` it trains the whole weights.
LearnerBytes learner_bytes(const LearnerOptions& options, const ModelConfig& config,
                           std::span<const AdapterTraining> adapters, int64_t rows);

/// The part of `weights` that is frozen; 0 without adapters.
double frozen_bytes(const LearnerOptions& options, const ModelConfig& config,
                    std::span<const AdapterTraining> adapters);

/// kExhausted: compares `bytes` with the free memory in `facts`. `is_base_there`: the frozen
/// weights are not counted, since another engine or learner has loaded them.
Error too_large(const LearnerOptions& options, std::span<const AdapterTraining> adapters,
                const LearnerBytes& bytes, int64_t rows, const CudaDeviceFacts& facts,
                bool is_base_there = false);

}  // namespace primerl
