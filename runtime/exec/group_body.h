/// The inside of an ActorGroup (its manual is in actor_group.h): the parts of a group, and what
/// joins them.
///
///   GroupLinks    sends, receives, grants and counts messages        group_links.h
///   GroupActors   the actors, their timers, restarts and tenants     group_actors.h
///   GroupSteps    chooses, runs, completes and records steps         group_steps.h
///   GroupSaver    saves the group for a cut and restores it          group_saver.h
///
/// Each part uses the parts above it. Threads: as the ActorGroup.
#pragma once

#include <memory>

#include "runtime/exec/actor_group.h"
#include "runtime/exec/group_actors.h"
#include "runtime/exec/group_links.h"
#include "runtime/exec/group_saver.h"
#include "runtime/exec/group_steps.h"

namespace primerl {

class ActorGroup::Body {
 public:
  explicit Body(GroupSetup setup);
  ~Body() { destroy(); }

  Status start(Time now, const GroupState* from);
  Status start_from(const GroupState& state, std::span<const SavedMessage> in_transit, Time now);
  Status restore(const GroupState& state, Time now);
  void resume(Time now);
  Status accept(MessageBatch&& batch, Time now);
  void begin_burst();
  void end_burst();
  void drain_tenant(TenantSlot slot, Time now);
  void change_tenant(const TenantChange& change, Time now);
  SlotCounts slot_counts(TenantSlot slot) const;
  void destroy();
  GroupView view() const;

  /// After every change: capacity that became free may arm a work call, and outside of a burst the
  /// due batches leave and the gauges are updated.
  void after_change();
  void update_gauge();
  bool is_idle(TenantSlot slot) const;

  const std::shared_ptr<GroupCommon> common_;
  GroupLinks links_;
  GroupActors actors_;
  GroupSteps steps_;
  GroupSaver saver_;
  bool is_started_ = false;
  bool is_in_burst_ = false;  // batches and gauges are updated at its end

  // Read by any thread.
  Counter waiting_, oldest_arrival_, is_idle_, is_ready_;
  std::vector<Counter> slots_idle_;  // by tenant slot; of slots that drain
};

}  // namespace primerl
