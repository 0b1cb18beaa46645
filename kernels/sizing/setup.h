/// Checks of engine and learner options that need no weights. `check` runs them on a graph, and the
/// factories run them again. Messages quote the options. Pure functions.
#pragma once

#include "graph/base/result.h"
#include "kernels/engine/options.h"
#include "kernels/models/config.h"
#include "kernels/train/options.h"

namespace primerl {

/// Why an engine with these options, on the device in them, cannot serve the model.
Status check_engine_setup(const EngineOptions& options, const ModelConfig& config);
/// Why a learner with these options cannot be made on the device in them.
Status check_learner_setup(const LearnerOptions& options);

}  // namespace primerl
