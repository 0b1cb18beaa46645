/// A JSON Schema (draft-04, which TOML editors read) of graph files, made from the catalog. The
/// option registry that checks a file also completes and documents it in an editor. What occurs
/// more than once is in `definitions`.
#pragma once

#include "graph/base/json.h"
#include "graph/catalog.h"

namespace primerl {

Json graph_schema(const Catalog& catalog);

}  // namespace primerl
