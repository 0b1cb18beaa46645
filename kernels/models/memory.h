/// What engines and learners on the CPU keep in memory, in fp32, by part: counted by `check` before
/// anything is made, and by the engine and the learner themselves. Plain functions, any thread.
#pragma once

#include <string>
#include <vector>

#include "graph/base/memory_part.h"
#include "kernels/engine/options.h"
#include "kernels/models/adapter.h"
#include "kernels/models/config.h"

namespace primerl {

/// Weights, KV blocks, the slots of adapters at their largest, and the adapters that are kept
/// beside the slots where there are more of them than slots. A second set of weights, which is made
/// where the machine has room, is not counted.
std::vector<MemoryPart> engine_memory(const EngineOptions& options, const ModelConfig& config);

/// Of a learner of the whole weights.
std::vector<MemoryPart> learner_memory(const ModelConfig& config);

/// An adapter that a learner trains, and whose it is.
struct TrainedAdapter {
  std::string tenant;
  AdapterConfig config;  // valid
};
/// Of a learner of adapters, whose weights are frozen.
std::vector<MemoryPart> learner_memory(const ModelConfig& config,
                                       const std::vector<TrainedAdapter>& adapters);

}  // namespace primerl
