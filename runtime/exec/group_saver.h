/// GroupSaver: the complete state of an actor group, saved for a cut and restored into a new group.
/// The parts of a group save and restore their own data. This class defines the order, checks
/// that a state fits the group's plan, and joins cuts between two steps (process_cut.h).
///
///   saved:     follow_cut() or cut() -> state() -> CutSink
///   restored:  start(state) -> restore(state) -> receive(messages in transit)
///
/// Owned by the ActorGroup. Threads: the group's thread, between two steps.
#pragma once

#include <memory>
#include <span>

#include "runtime/exec/group_actors.h"
#include "runtime/exec/group_links.h"
#include "runtime/exec/group_steps.h"
#include "runtime/exec/process_cut.h"

namespace primerl {

class GroupSaver {
 public:
  /// All arguments must stay valid while the saver exists.
  GroupSaver(const GroupCommon& common, GroupLinks& links, GroupActors& actors, GroupSteps& steps)
      : common_(common), links_(links), actors_(actors), steps_(steps) {}

  GroupState state() const;
  /// Joins cut `number`: what was written before it leaves first. Nothing if it already joined.
  void cut(uint64_t number, Time now);
  /// Call before the batch is accepted. A batch of this process that was sent after a newer cut
  /// makes the group join it. Messages that were sent before the newest cut are in transit.
  void follow_cut(uint32_t peer, const MessageBatch& batch, Time now);
  uint64_t newest_cut() const { return links_.peers().cut(); }

  /// Puts a state into a group that has started and made no step, and whose slots are those of the
  /// state. After an error the group must not be used any more.
  Status restore(const GroupState& state);
  /// Messages of the cut that were sent to this group and not yet received.
  Status receive(std::span<const SavedMessage> in_transit);

  /// kCorrupt when the state is of another plan or group.
  Status check_fits(const GroupState& state) const;

 private:
  Status put_back(const SavedInput& saved);
  Status put_back_message(const SavedInput& saved);

  const GroupCommon& common_;
  GroupLinks& links_;
  GroupActors& actors_;
  GroupSteps& steps_;
};

}  // namespace primerl
