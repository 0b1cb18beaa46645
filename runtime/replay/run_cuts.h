/// RunCuts: the cuts from which the processes of a run follow their records: one of each process
/// that follows, or none at all. A process that followed from its first step, beside one that
/// follows from a cut, would count the messages between them otherwise.
///
/// Values; immutable once made.
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
  /// By ProcessId; null: a process that does not follow.
  RunCuts(const Plan& plan, std::vector<std::shared_ptr<const ProcessCut>> of)
      : of_(std::move(of)), states_(plan.groups.size(), nullptr) {
    for (const auto& cut : of_)
      if (cut != nullptr)
        for (const GroupState& state : cut->groups) states_[state.group.index()] = &state;
  }

  bool empty() const { return states_.empty(); }
  /// Null for a group without a part: it follows from its first step, or not at all.
  const GroupState* state_of(GroupId group) const {
    return states_.empty() ? nullptr : states_[group.index()];
  }
  /// The first step that it takes from its record.
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

/// What a record begins with, when its start went on from cuts; empty when it begins with the first
/// step. Trace's catalog must fit the plan.
Result<RunCuts> base_cuts(const Plan& plan, const std::filesystem::path& folder);

/// A moment of a recorded run.
struct RunMoment {
  GroupId group;  // with `step`: before this step of the group
  uint64_t step = 0;
  int64_t training_step = 0;  // otherwise: before this training step of `tenant`
  TenantSlot tenant = TenantSlot(0);
};

/// The cuts of a record that has all steps after them: a replay can begin with one of each process.
class SavedStates {
 public:
  /// `folders`: trace_folders(). Of this run, graph and program alone; those that cannot be read
  /// are named in notes().
  SavedStates(const Plan& plan, const Trace& trace, std::span<const std::filesystem::path> folders);

  /// The newest cuts from before a moment, of each process that has one; empty: there are none.
  RunCuts before(const RunMoment& moment);
  /// Of the cuts that before() has found: when the newest was made.
  Time made_at() const { return made_at_; }
  /// Training steps of the first tenant after which a learner was cut, ascending.
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

/// What a recorded run can be followed from.
struct CutChoice {
  std::vector<CutFile> files;      // one of each process that has one; empty: none
  std::vector<std::string> paths;  // of them
  std::vector<std::string> notes;  // cuts that were left out, and why; for a person
};
/// The newest cut of each process that this plan and program can use and that is not newer than the
/// learner's checkpoint (`checkpoint_steps`, by tenant slot; -1: there is none). `unfit`: cuts that
/// cannot be used for another reason, which it says.
CutChoice choose_cuts(const Plan& plan, const std::filesystem::path& record, uint64_t run_id,
                      std::span<const int64_t> checkpoint_steps,
                      const std::map<std::string, std::string>& unfit = {});

}  // namespace primerl
