/// check: GraphSpec and catalog in, every finding out. Starts nothing, opens no file but the model
/// folders' configs (through the catalog).
#pragma once

#include "graph/check/draft.h"

namespace primerl {

/// Reports tables that nothing names while several places agree on a name near to theirs (G011,
/// G013, G014), and calls them by that name. Before a Draft is made.
void correct_names(GraphSpec& spec, const Catalog& catalog, Diagnostics& diagnostics);

/// Binds every table and runs every rule; the draft's diagnostics hold the findings.
void check_graph(Draft& draft);

}  // namespace primerl
