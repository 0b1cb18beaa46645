/// What engines and learners refuse before they read weights, whoever makes them: `check` asks it
/// of a graph, and the makers ask it again. Messages quote the options they are about. Pure
/// functions.
#pragma once

#include "graph/base/result.h"
#include "kernels/engine/options.h"
#include "kernels/models/config.h"
#include "kernels/train/options.h"

namespace primerl {

/// Why no engine with these options, on the device that they name, can serve the model.
Status check_engine_setup(const EngineOptions& options, const ModelConfig& config);
/// Why no learner with these options can be made on the device that they name.
Status check_learner_setup(const LearnerOptions& options);

}  // namespace primerl
