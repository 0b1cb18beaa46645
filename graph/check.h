/// check: reads a GraphSpec and a catalog and reports every finding. Starts nothing, and opens no
/// file except the model folders' configs (through the catalog).
#pragma once

#include "graph/check/draft.h"

namespace primerl {

/// Finds misspelt table names: nothing names the table, but several places name one similar name.
/// Reports them (G011, G013, G014) and renames the table to that name. Called before a Draft is
/// made.
void correct_names(GraphSpec& spec, const Catalog& catalog, Diagnostics& diagnostics);

/// Binds every table and runs every rule. The findings are in the draft's diagnostics.
void check_graph(Draft& draft);

}  // namespace primerl
