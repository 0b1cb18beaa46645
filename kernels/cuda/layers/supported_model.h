/// Which models CUDA devices can compute. Any thread; torch-free.
#pragma once

#include "graph/base/result.h"
#include "kernels/models/config.h"

namespace primerl {

/// Why engines and learners cannot compute a model on a device; ok if they can.
Status check_cuda_model(const ModelConfig& config);

}  // namespace primerl
