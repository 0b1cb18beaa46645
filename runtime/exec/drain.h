/// DrainDetector: finds out when a draining run is over. Two counts over all groups, one after the
/// other, must find every group idle, no message in transit, and no step between them. Shared by
/// both executors. A value.
#pragma once

#include <span>

#include "runtime/exec/actor_group.h"

namespace primerl {

class DrainDetector {
 public:
  /// One count over all groups. True: the run is over. Counts may be read while groups run: a
  /// message in transit shows up as a step or as a difference in the next count.
  bool is_over(std::span<const GroupCounts> groups);

 private:
  bool was_quiet_ = false;
  uint64_t num_steps_ = 0;
  uint64_t num_shipped_ = 0;
};

/// The same for one slot that drains: two counts in a row over all groups of a process find every
/// group idle for the slot, none of its messages between them, and the same numbers. A value.
class SlotDrain {
 public:
  /// The pauses between looks double from the first to the last.
  static constexpr Duration kLookAfterMin = Duration::milliseconds(1);
  static constexpr Duration kLookAfterMax = Duration::milliseconds(64);

  /// True: the slot has drained here.
  bool is_over(std::span<const SlotCounts> groups);
  /// The pause before the next look. A slot that is idle has drained within a few milliseconds; one
  /// whose rollouts end first must not cost many looks.
  Duration next_pause();
  /// How long checkpoints may move the deadline. They may be those of other tenants, which never
  /// end: a tenant whose message was lost must still leave.
  static constexpr Duration kSavesMax = Duration::seconds(1800);

  /// The order came. Orders that are repeated while it has no answer do not move the deadline:
  /// they may come more often than every drain_max.
  void ordered(Time now, Duration drain_max);
  /// The process wrote the last byte of a checkpoint at `last`.
  void saved(Time last, Duration drain_max);
  /// drain_max after the order, and after the last byte of a checkpoint. Then actors that still
  /// wait count as idle: a message of theirs was lost with a fault.
  Time deadline() const { return deadline_; }
  bool is_late = false;  // the groups were told

 private:
  bool was_quiet_ = false;
  uint64_t num_shipped_ = 0;
  Duration pause_ = kLookAfterMin;
  Time deadline_, latest_;
};

}  // namespace primerl
