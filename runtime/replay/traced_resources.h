/// The resources of a recorded run and of a replay: real ones whose answers are recorded, or ones
/// that repeat recorded answers.
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

/// The resources of `make`; `recorder` records the answers of engines and learners. It must stay
/// valid while they exist.
ResourceFactory recording_factory(ResourceFactory make, Recorder& recorder);

/// The tenants whose trainers are in a group; each has its own steps. Empty: the group has no
/// learner.
std::vector<TenantSlot> tenants_trained_by(const Plan& plan, GroupId group);
/// For each tenant of the group's learner: the number of its steps in the saved state.
Result<std::map<TenantSlot, int64_t>> learner_steps_of(const Plan& plan, const GroupState& state);
/// The tenants of the group's learner that had open gradients in the saved state. It is of no use
/// without a checkpoint of a later step of each.
Result<std::vector<TenantSlot>> open_tenants_of(const Plan& plan, const GroupState& state);
/// The number of training steps at the end of a start's record, by tenant slot.
Result<std::vector<int64_t>> learner_steps_in(const Plan& plan, const Trace& trace,
                                              const RunCuts& cuts);
/// The resources of `make`, which answer from the record until `recovery` is live. `recovery` must
/// stay valid while they exist. `points`: by tenant slot. If a record ends before its checkpoint,
/// the learner returns an error.
ResourceFactory recovery_factory(ResourceFactory make, Recovery& recovery,
                                 std::vector<RecoveryPoint> points);

/// The parts that a replay computes itself.
enum class ReplayDepth {
  kFull,     // everything: the engine generates, the learner trains
  kLearner,  // the engine answers from the record
  kControl,  // so does the learner
};

/// Sets `factory` of `setup`, and `published` if weights are computed again; the plan in `setup`
/// must be set. The resources are those of `make`, or repeat the record. With `only` a learner
/// computes the steps of that tenant only, and each must match the record. The steps of other
/// tenants come from the record.
void use_resources(ReplaySetup& setup, ResourceFactory make, ReplayDepth depth,
                   std::optional<TenantSlot> only = std::nullopt);

/// A point that is never reached: every step of the tenant comes from the record.
RecoveryPoint never_computed();
/// Makes `factory` of `setup`, whose plan is set: engines answer from the record, and so do
/// learners up to the point of each tenant (by slot). Every later step is computed and must come
/// out as recorded. Recorded checkpoints are not written again.
void use_learner_from(ReplaySetup& setup, ResourceFactory make, std::vector<RecoveryPoint> points);

}  // namespace primerl
