/// A checkpoint that a run did not keep, made again from its record.
///
/// The learner is loaded from the newest older checkpoint of the tenant, or begins with the first
/// step. From there the actor group of the trainer repeats its recorded steps up to training step
/// N: its inputs come from the record, and the learner computes every step. Each result must be the
/// recorded one. Then the learner saves its files. They are the files that the run itself would
/// have written after step N, to the bit where the learner repeats to the bit (tolerance.h).
///
///   ASSIGN_OR_RETURN(auto record, TrainingRecord::open(run));
///   ASSIGN_OR_RETURN(const Remake remake, record.remake("main", 15));  // computes nothing
///   RETURN_IF_ERROR(play_to_checkpoint(remake, resource_factory(), save));
///
/// In the folder of the run it writes only an index of the trace, as every reader of a trace does.
/// Not thread-safe.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/train/learner.h"
#include "runtime/exec/executor.h"
#include "runtime/replay/replay.h"
#include "runtime/replay/resuming_learner.h"

namespace primerl {

/// The part of a record that is played to make a checkpoint again.
struct Remake {
  std::shared_ptr<const Trace> trace;
  std::shared_ptr<const Plan> plan;  // of the record
  TenantSlot tenant;                 // in that plan
  GroupId group;                     // of the tenant's trainer
  InstanceId trainer;
  int64_t step = 0;        // training step of the checkpoint
  int64_t from_step = 0;   // of the checkpoint that the learner is loaded from; 0: the first step
  uint64_t stop_step = 0;  // the group's last step before it would have saved
  RunCuts cuts;            // that the group begins with; empty: its first step
  std::vector<bool> is_real, is_absent;  // by group
  std::vector<ResumePoint> begun_from;   // by tenant slot: what the record began from
  std::vector<RecoveryPoint> points;     // by tenant slot

  /// "re-making the checkpoint of step 15 from step 10: 5 steps".
  std::string text() const;
};

class TrainingRecord {
 public:
  /// An error says why the run has no record that can be played.
  static Result<TrainingRecord> open(const std::filesystem::path& run);

  bool has(const std::string& tenant) const;
  /// The last training step that the tenant has taken; 0 before the first.
  Result<int64_t> last_step(const std::string& tenant) const;
  /// Finds what must be played for the checkpoint of a step from 1 to last_step(); an error says
  /// what the record lacks.
  Result<Remake> remake(const std::string& tenant, int64_t step) const;

 private:
  /// The record of one start and of the starts that resumed from its saved state.
  struct Part {
    std::filesystem::path folder;
    std::shared_ptr<const Trace> trace;
    std::shared_ptr<const Plan> plan;
  };
  static Result<Part> open_part(const std::filesystem::path& folder);
  Result<Part> part_with(const std::string& tenant, int64_t step) const;
  Result<Remake> remake_from(const Part& part, TenantSlot tenant, int64_t step) const;

  std::filesystem::path run_;
  Part newest_;
};

/// Plays `remake`. `save` is called once, on the learner's thread, after the training step, with
/// the real learner and the saved state of the trainer. kDeadline when a step hangs: its thread is
/// lost, so end the process.
Status play_to_checkpoint(
    const Remake& remake, ResourceFactory make,
    const std::function<Status(Learner& learner, const SavedFields& trainer)>& save);

}  // namespace primerl
