/// What engines and learners on the CPU keep in memory, in fp32, by part: counted by `check` before
/// anything is made, and by the engine and the learner themselves. Plain functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/memory_part.h"
#include "kernels/engine/options.h"
#include "kernels/models/adapter.h"
#include "kernels/models/config.h"
#include "kernels/train/options.h"

namespace primerl {

/// Numbers of the panels that weights on the CPU are packed into (kLinearPanel of kernels/ops).
inline constexpr int64_t kPackedColumns = 16;
/// Bytes of weights that are packed for their products, as engines, their adapters and frozen bases
/// are: matrices in whole panels, and a tied embedding once more as it is.
double packed_bytes(const TensorTable& table);

/// Weights, KV blocks, the slots of adapters at their largest, the adapters that are kept beside
/// the slots where there are more of them than slots, and the rows and logits of a step. With slots
/// the weights are a base that learners of adapters share; without, a second set of them is filled
/// with the next version while the first is in use, unless `has_second_set` is false.
std::vector<MemoryPart> engine_memory(const EngineOptions& options, const ModelConfig& config);

/// An adapter that a learner trains, and whose it is.
struct TrainedAdapter {
  std::string tenant;
  AdapterConfig config;  // valid
};
/// A learner of the whole weights or, if there are `adapters`, of those on a frozen base, which
/// fast numerics do not share. `rows`: tokens of the largest micro-batch; 0: not counted.
std::vector<MemoryPart> learner_memory(const LearnerOptions& options, const ModelConfig& config,
                                       const std::vector<TrainedAdapter>& adapters, int64_t rows);

/// Floats that a learner keeps for a token of a micro-batch (cpu/learner/training_pass.h), which
/// depends on `recompute`.
int64_t training_floats_a_row(const ModelConfig& config, std::string_view recompute);
/// Tokens whose logits a learner has at a time (cpu/learner/head.h).
int64_t training_logits_rows(int64_t vocab_size);

/// The snapshots of a channel that keeps `versions` of the weights, and the one that is being made.
std::vector<MemoryPart> versions_memory(const ModelConfig& config,
                                        const std::vector<TrainedAdapter>& adapters,
                                        int64_t versions);

/// The part of a process that no engine or learner owns: program, libtorch, thread stacks,
/// messages.
MemoryPart libraries_memory();

}  // namespace primerl
