/// The resources of a recorded run and of a replay: the real ones with their answers written down,
/// or players of those answers.
#pragma once

#include "runtime/exec/executor.h"
#include "runtime/replay/recovery.h"
#include "runtime/replay/replay.h"
#include "runtime/trace/record/recorder.h"

namespace primerl {

/// What `make` makes; engines and learners wrapped so that `recorder` (which outlives them) keeps
/// their answers.
ResourceFactory recording_factory(ResourceFactory make, Recorder& recorder);

/// Where the learner of a tenant takes up a run that was cut off.
struct RecoveryPoint {
  std::filesystem::path checkpoint;  // empty: none, its steps are taken again from the first
  int64_t num_steps = 0;             // that the record takes before it
};
/// What `make` makes, answering as recorded until `recovery` (which outlives them) is live.
/// `points`: by tenant slot. A record that ends before its checkpoint is an error of the learner's.
ResourceFactory recovery_factory(ResourceFactory make, Recovery& recovery,
                                 std::vector<RecoveryPoint> points);

/// What a replay computes.
enum class ReplayDepth {
  kFull,     // all: the engine generates, the learner trains
  kLearner,  // the engine answers from the record
  kControl,  // so does the learner
};

using ReplayFactory =
    std::function<Result<std::unique_ptr<Resource>>(const Plan&, int32_t, ReplayedAnswers&)>;
/// For ReplaySetup::factory: what `make` makes, or players of the record.
ReplayFactory replay_factory(ResourceFactory make, ReplayDepth depth);

}  // namespace primerl
