/// Counts the memory of groups of examples that wait for the trainer. Rollouts have a gate, which
/// keeps as few groups open as keep the trainer busy; a source of examples sends until the edges
/// are full.
///
/// A pure function of the checked nodes and edges.
#pragma once

#include <vector>

#include "graph/check/draft.h"

namespace primerl {

/// One part for each tenant; empty for graphs of rollouts. `learner` has the model that the groups
/// are for.
std::vector<MemoryPart> waiting_groups(const Draft& draft, const DraftResource& learner);

}  // namespace primerl
