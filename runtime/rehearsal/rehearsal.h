/// The rehearsal of a graph: runs its own actors to find faults that no static rule can find.
///
/// `check` does it, and so does `run` before it starts anything. The checked graph runs on a
/// virtual clock (rehearsal_stage.h) until every tenant has made its first steps and the run has
/// drained. A graph that makes no progress, fails or logs a warning gets a finding: which nodes
/// wait for which, and the missing edge if adding one makes the graph run. Some real tasks are
/// checked against seq_len and turns_max (rehearsal_tasks.h). Nothing is written and no process is
/// started; only the tokenizer of a model is read. Equal graphs give equal findings.
#pragma once

#include <string>

#include "graph/plan.h"

namespace primerl {

inline constexpr int64_t kRehearsalSteps = 3;  // of every tenant; fewer if max_steps is smaller
/// Limit for events times (actor groups + edges) of one rehearsal, about half a second. The demo
/// needs a twentieth of it. A rehearsal that needs more is stopped; that is reported, but is not a
/// finding.
inline constexpr uint64_t kRehearsalWorkMax = 2'000'000;
/// Maximum number of edges that are tried in a graph that makes no progress.
inline constexpr int kRehearsalTrialsMax = 8;

struct Rehearsal {
  enum class End { kPlayed, kLeftOut, kCutShort, kRefused };
  End end = End::kLeftOut;
  std::string text;  // one line for a person: what was rehearsed, or why it did not reach the end
};

/// Adds findings to `checked` and removes its plan when one is an error. Does nothing without a
/// plan, a tenant or a learner.
Rehearsal rehearse(CheckedGraph& checked, const Catalog& catalog);

}  // namespace primerl
