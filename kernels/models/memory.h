/// What engines and learners on the CPU keep in memory, in fp32, by part: counted by `check` before
/// anything is made, and by the engine and the learner themselves. Plain functions, any thread.
#pragma once

#include <string>
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

/// Weights, KV blocks, the slots of adapters at their largest, and the adapters that are kept
/// beside the slots where there are more of them than slots. With slots the weights are a base that
/// learners of adapters share. A second set of weights, which is made where the machine has room,
/// is not counted.
std::vector<MemoryPart> engine_memory(const EngineOptions& options, const ModelConfig& config);

/// Of a learner of the whole weights.
std::vector<MemoryPart> learner_memory(const ModelConfig& config);

/// An adapter that a learner trains, and whose it is.
struct TrainedAdapter {
  std::string tenant;
  AdapterConfig config;  // valid
};
/// Of a learner of adapters on a frozen base, which fast numerics do not share.
std::vector<MemoryPart> learner_memory(const LearnerOptions& options, const ModelConfig& config,
                                       const std::vector<TrainedAdapter>& adapters);

}  // namespace primerl
