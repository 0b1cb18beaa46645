/// Learner with no model: its weights are a hash of all it was trained on, its reports are
/// plausible and follow from data and history alone, its costs come from a table.
///
/// For the virtual clock and for tests of everything around a learner. Refuses what a real learner
/// refuses: arrays of unequal length, tokens outside the vocabulary, numbers that are not finite, a
/// temperature of 0, kept sets of other tokens, samples that are too long. Skips a step without
/// loss tokens. Equal data and history give equal bytes; loss options have no effect, since no
/// gradient is computed.
#pragma once

#include <memory>

#include "kernels/scripted/options.h"
#include "kernels/train/learner.h"

namespace primerl {

/// Refuses options that make no learner, naming the option and what was valid.
Status validate(const ScriptedLearnerOptions& options);

Result<std::unique_ptr<Learner>> make_scripted_learner(const ScriptedLearnerOptions& options);

}  // namespace primerl
