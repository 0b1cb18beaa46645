/// Whether this machine can hold what an engine or a learner needs, asked before it is made: memory
/// that the system promised and does not have ends a process much later. Any thread.
#pragma once

#include <string_view>

#include "graph/base/result.h"
#include "kernels/engine/options.h"
#include "kernels/models/tensors.h"

namespace primerl {

/// Bytes of weights and of the KV cache: what an engine takes for sure.
double bytes_needed_to_generate(const EngineOptions& options, const ModelConfig& config,
                                const TensorTable& table);
/// Bytes of weights, gradients and both moments.
double bytes_needed_to_train(const TensorTable& table);

/// Refuses `bytes` beyond the memory of this machine; `what` says what they are for.
Status check_memory(std::string_view what, double bytes);

}  // namespace primerl
