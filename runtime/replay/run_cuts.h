/// RunCuts: the cuts from which the processes of a run follow their records. Either every process
/// that follows has one, or none has. If one process followed from its first step and another from
/// a cut, they would count the messages between them differently.
///
/// Values; immutable after construction.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/exec/process_cut.h"
#include "runtime/trace/cut_file.h"
#include "runtime/trace/read/trace.h"

namespace primerl {

class RunCuts {
 public:
  RunCuts() = default;
  /// By ProcessId; null: the process does not follow.
  RunCuts(const Plan& plan, std::vector<std::shared_ptr<const ProcessCut>> of)
      : of_(std::move(of)), states_(plan.groups.size(), nullptr) {
    for (const auto& cut : of_)
      if (cut != nullptr)
        for (const GroupState& state : cut->groups) states_[state.group.index()] = &state;
  }

  bool empty() const { return states_.empty(); }
  /// Null for a group without a part in a cut: it follows from its first step, or not at all.
  const GroupState* state_of(GroupId group) const {
    return states_.empty() ? nullptr : states_[group.index()];
  }
  /// The first step of the record that the group follows.
  uint64_t first_step(GroupId group) const {
    const GroupState* state = state_of(group);
    return state == nullptr ? 1 : state->num_steps + 1;
  }
  std::vector<SavedMessage> in_transit_to(const Wiring& wiring, GroupId group) const {
    std::vector<SavedMessage> messages;
    for (const auto& cut : of_)
      if (cut != nullptr)
        for (const SavedMessage& each : cut->in_transit)
          if (wiring.links[each.link.index()].target_group == group) messages.push_back(each);
    return messages;
  }

 private:
  std::vector<std::shared_ptr<const ProcessCut>> of_;
  std::vector<const GroupState*> states_;  // by GroupId; into of_
};

RunCuts cuts_of(const Plan& plan, std::span<const CutFile> files);

/// The cuts at the begin of a record whose start resumed from cuts; empty when it begins with the
/// first step. Trace's catalog must fit the plan.
Result<RunCuts> base_cuts(const Plan& plan, const std::filesystem::path& folder);

/// A moment of a recorded run.
struct RunMoment {
  GroupId group;  // with `step`: before this step of the group
  uint64_t step = 0;
  int64_t training_step = 0;  // otherwise: before this training step of `tenant`
  TenantSlot tenant = TenantSlot(0);
};

/// The cuts of a record after which all steps are recorded: a replay can begin with one per
/// process.
class SavedStates {
 public:
  /// `folders`: trace_folders(). Only cuts of this run, graph and program are used; notes() names
  /// those that cannot be read.
  SavedStates(const Plan& plan, const Trace& trace, std::span<const std::filesystem::path> folders);

  /// For each process the newest cut that is older than the moment; empty: there are none.
  RunCuts before(const RunMoment& moment);
  /// For the cuts that before() found: the time of the newest.
  Time made_at() const { return made_at_; }
  /// Training steps of the first tenant after which a cut of a learner was made, ascending.
  std::vector<int64_t> training_steps() const;
  /// The newest of these cuts: where the learner's group was, and how many steps of the tenant it
  /// had taken.
  std::optional<std::pair<uint64_t, int64_t>> newest_of_learner(
      GroupId learner, TenantSlot tenant = TenantSlot(0)) const;
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct Saved {
    std::filesystem::path path;
    CutHead head;
    bool is_unreadable = false;
  };
  const Plan& plan_;
  std::vector<Saved> all_;
  std::vector<std::string> notes_;
  Time made_at_;
};

/// The cuts from which a recorded run can be followed.
struct CutChoice {
  std::vector<CutFile> files;      // one per process that has a usable cut; empty: none
  std::vector<std::string> paths;  // paths of those files
  std::vector<std::string> notes;  // for a person: skipped cuts and why
};
/// For each process the newest cut that this plan and program can use. It must not be newer than
/// the learner's checkpoint (`checkpoint_steps`, by tenant slot; -1: none; those of tenants that
/// had joined are in their folders beside the record). `unfit`: cuts that cannot be used for
/// another reason, with that reason.
CutChoice choose_cuts(const Plan& plan, const std::filesystem::path& record, uint64_t run_id,
                      std::span<const int64_t> checkpoint_steps,
                      const std::map<std::string, std::string>& unfit = {});

}  // namespace primerl
