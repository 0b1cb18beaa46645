/// What a learner on a CUDA device needs of its memory, and the error where there is less. Plain
/// functions of options, any thread; bytes as doubles.
#pragma once

#include <cstdint>
#include <span>

#include "graph/base/result.h"
#include "kernels/models/config.h"
#include "kernels/torch/cards.h"
#include "kernels/train/adapter_training.h"
#include "kernels/train/options.h"

namespace primerl {

/// Of libtorch's workspaces, and of what its pool rounds up.
inline constexpr double kLearnerReserveBytes = 1e9;

struct LearnerBytes {
  double weights = 0, rows = 0, head = 0;
  double all() const { return weights + rows + head + kLearnerReserveBytes; }
};

/// For micro-batches of `rows` rows. Without `adapters` it trains the whole weights.
LearnerBytes learner_bytes(const LearnerOptions& options, const ModelConfig& config,
                           std::span<const AdapterTraining> adapters, int64_t rows);

/// Of `weights`, those that stay as they are; without adapters there are none.
double frozen_bytes(const LearnerOptions& options, const ModelConfig& config,
                    std::span<const AdapterTraining> adapters);

/// kExhausted: `bytes`, beside what `card` has free. `is_base_there`: the frozen weights are not
/// among them, since somebody else has brought them there.
Error too_large(const LearnerOptions& options, std::span<const AdapterTraining> adapters,
                const LearnerBytes& bytes, int64_t rows, const CardFacts& card,
                bool is_base_there = false);

}  // namespace primerl
