/// The resources of a recorded run and of a replay: the real ones, with a learner that writes its
/// answers down, or one that plays them.
#pragma once

#include "runtime/exec/executor.h"
#include "runtime/trace/recorder.h"
#include "runtime/trace/replay.h"

namespace primerl {

/// What `make` makes, learners wrapped so that `recorder` (which outlives them) keeps their
/// answers.
ResourceFactory recording_factory(ResourceFactory make, Recorder& recorder);

/// For ReplaySetup::factory: what `make` makes; learners from the record when `recorded_learner`.
std::function<Result<std::unique_ptr<Resource>>(const Plan&, int32_t, RecordedAnswers&)>
replay_factory(ResourceFactory make, bool recorded_learner);

}  // namespace primerl
