/// The resources of a recorded run and of a replay: the real ones with their answers recorded, or
/// players of recorded answers.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "runtime/exec/executor.h"
#include "runtime/replay/recovery.h"
#include "runtime/replay/replay.h"
#include "runtime/replay/resuming_learner.h"
#include "runtime/trace/record/recorder.h"

namespace primerl {

/// The resources of `make`; engines and learners are wrapped so that `recorder` (which outlives
/// them) records their answers.
ResourceFactory recording_factory(ResourceFactory make, Recorder& recorder);

/// The tenants whose trainers a group has: each has steps of its own. None: it has no learner.
std::vector<TenantSlot> tenants_trained_by(const Plan& plan, GroupId group);
/// How many steps each tenant of the group's learner had taken when the group was cut.
Result<std::map<TenantSlot, int64_t>> learner_steps_of(const Plan& plan, const GroupState& state);
/// How many training steps a start had taken at the end of its record, by tenant slot.
Result<std::vector<int64_t>> learner_steps_in(const Plan& plan, const Trace& trace,
                                              const RunCuts& cuts);
/// The resources of `make`, which answer as recorded until `recovery` (which outlives them) is
/// live. `points`: by tenant slot. A record that ends before its checkpoint is an error of the
/// learner.
ResourceFactory recovery_factory(ResourceFactory make, Recovery& recovery,
                                 std::vector<RecoveryPoint> points);

/// What a replay computes.
enum class ReplayDepth {
  kFull,     // everything: the engine generates, the learner trains
  kLearner,  // the engine answers from the record
  kControl,  // so does the learner
};

/// Makes `factory`, and `published` where weights are computed again, of `setup`, whose plan is
/// set: the resources of `make`, or players of the record. With `only` a learner computes the steps
/// of that tenant alone, each of which must come out as recorded; those of others come from the
/// record.
void use_resources(ReplaySetup& setup, ResourceFactory make, ReplayDepth depth,
                   std::optional<TenantSlot> only = std::nullopt);

/// A point that is never reached: every step of the tenant comes from the record.
RecoveryPoint never_computed();
/// Makes `factory` of `setup`, whose plan is set: engines answer from the record, and so do
/// learners up to the point of each tenant (by slot). Every later step is computed and must come
/// out as recorded. Recorded checkpoints are not written again.
void use_learner_from(ReplaySetup& setup, ResourceFactory make, std::vector<RecoveryPoint> points);

}  // namespace primerl
