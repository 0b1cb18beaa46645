/// Learner without a model: its weights are a hash of its training data, its reports are plausible
/// and depend only on data and history, its costs come from a table.
///
/// For the virtual clock and for tests of everything around a learner. It refuses what a real
/// learner refuses: arrays of unequal length, tokens outside the vocabulary, NaN or infinity,
/// temperature 0, kept sets of other tokens, samples that are too long. It skips a step without
/// loss tokens. Equal data and history give equal bytes. Loss options have no effect, since no
/// gradient is computed.
#pragma once

#include <memory>

#include "kernels/scripted/options.h"
#include "kernels/train/learner.h"

namespace primerl {

/// Refuses invalid options; the error names the option and the valid values.
Status validate(const ScriptedLearnerOptions& options);

Result<std::unique_ptr<Learner>> make_scripted_learner(const ScriptedLearnerOptions& options);

}  // namespace primerl
