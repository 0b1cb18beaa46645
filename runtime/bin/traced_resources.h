/// The resources of a recorded run and of a replay: the real ones with their answers written down,
/// or players of those answers.
#pragma once

#include "runtime/exec/executor.h"
#include "runtime/trace/recorder.h"
#include "runtime/trace/replay.h"

namespace primerl {

/// What `make` makes; engines and learners wrapped so that `recorder` (which outlives them) keeps
/// their answers.
ResourceFactory recording_factory(ResourceFactory make, Recorder& recorder);

/// What a replay computes.
enum class ReplayDepth {
  kFull,     // all: the engine generates, the learner trains
  kLearner,  // the engine answers from the record
  kControl,  // so does the learner
};

using ReplayFactory =
    std::function<Result<std::unique_ptr<Resource>>(const Plan&, int32_t, RecordedAnswers&)>;
/// For ReplaySetup::factory: what `make` makes, or players of the record.
ReplayFactory replay_factory(ResourceFactory make, ReplayDepth depth);

}  // namespace primerl
