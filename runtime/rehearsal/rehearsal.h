/// The rehearsal of a graph: runs its own actors to find faults that no rule can find.
///
/// `check`, and `run` before it starts anything, play the checked graph on a virtual clock
/// (rehearsal_stage.h) until every tenant has taken its first steps and the run has drained. A
/// graph that makes no progress, fails or logs a warning gets a finding: who waits for whom, and
/// the missing edge where adding one makes the graph run. Some real tasks are held against seq_len
/// and turns_max (rehearsal_tasks.h). Nothing is written, no process is started; of a model only
/// its tokenizer is read. Equal graphs give equal findings.
#pragma once

#include <string>

#include "graph/plan.h"

namespace primerl {

inline constexpr int64_t kRehearsalSteps = 3;  // of every tenant; fewer where max_steps is
/// Events times (actor groups + edges) of one play, about half a second. The demo needs a
/// twentieth of it; a play that needs more is cut short, which is said and is no finding.
inline constexpr uint64_t kRehearsalWorkMax = 2'000'000;
/// Edges that are tried in a graph that makes no progress.
inline constexpr int kRehearsalTrialsMax = 8;

struct Rehearsal {
  enum class End { kPlayed, kLeftOut, kCutShort, kRefused };
  End end = End::kLeftOut;
  std::string text;  // one line for a person: what was played, or why not to the end
};

/// Adds findings to `checked` and removes its plan when one is an error. Does nothing without a
/// plan, a tenant, or a learner to take a step.
Rehearsal rehearse(CheckedGraph& checked, const Catalog& catalog);

}  // namespace primerl
