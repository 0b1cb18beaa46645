/// An Outside without processes, for rehearsals and simulations: every answer is a hash of its
/// call.
///
/// A task is `N?`, as the scripted environment gives it; every second one has two turns. A score
/// is in [0, 1). Answers come `delay` work calls later, up to `delay_max`, so that answers overtake
/// each other. Planned faults: one of `fault_every` calls fails, one of `lose_every` needs its
/// history. Threads: its group's.
#pragma once

#include <memory>

#include "graph/outside.h"

namespace primerl {

struct ScriptedOutsideOptions {
  uint64_t delay_max = 0;    // in calls of receive_answers()
  uint64_t fault_every = 0;  // 0: none
  uint64_t lose_every = 0;   // of calls that are not whole; 0: none
};

std::shared_ptr<Outside> make_scripted_outside(ScriptedOutsideOptions options);

}  // namespace primerl
