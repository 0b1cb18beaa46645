/// check: GraphSpec and catalog in, every finding out. Starts nothing, opens no file but the model
/// folders' configs (through the catalog).
#pragma once

#include "graph/check/draft.h"

namespace primerl {

/// Binds every table and runs every rule; the draft's diagnostics hold the findings.
void check_graph(Draft& draft);

}  // namespace primerl
