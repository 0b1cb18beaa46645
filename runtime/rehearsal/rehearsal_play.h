/// One rehearsal of a staged plan on the virtual executor, and its results. No state: equal plans
/// give equal results.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/rehearsal/rehearsal_stage.h"

namespace primerl {

struct RehearsalPlay {
  enum class End {
    kFinished,  // every tenant made its steps, and the run drained
    kStill,     // no progress any more
    kFailed,    // a node ended the run
    kCutShort,  // work_max was reached first
  };
  End end = End::kFinished;
  std::string why;                      // for kFailed
  StallReport stall;                    // for kStill
  Time ended;                           // time on the virtual clock
  bool is_draining = false;             // every tenant had made its steps
  std::vector<int64_t> steps;           // by tenant slot
  std::vector<std::string> complaints;  // warnings and errors of nodes, the first few
  std::string rollout_fault;            // why the first rollout failed; empty: none did
  uint64_t num_events = 0;
};

/// Runs until the end, or until events times (actor groups + edges) reach `work_max`.
RehearsalPlay play_rehearsal(const RehearsalStage& stage, uint64_t work_max);

}  // namespace primerl
