/// DrainDetector: tells when a draining run is over: two successive counts over all groups find
/// every group idle, no message in transit, and no step between the two. Shared by both executors.
/// A value.
#pragma once

#include <span>

#include "runtime/exec/actor_group.h"

namespace primerl {

class DrainDetector {
 public:
  /// One count over all groups. True = over. Counts may be taken while groups run: a message in
  /// transit during a count shows up as a step or a difference in the next one.
  bool is_over(std::span<const GroupCounts> groups);

 private:
  bool was_quiet_ = false;
  uint64_t num_steps_ = 0;
  uint64_t num_shipped_ = 0;
};

}  // namespace primerl
