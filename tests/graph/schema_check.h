/// The part of JSON Schema draft-04 that graph_schema() uses, to hold a graph file against it.
#pragma once

#include <string>
#include <vector>

#include "graph/base/json.h"
#include "graph/value.h"

namespace primerl::testing {

/// A TOML table as JSON.
Json to_json(const Table& table);

/// Where `value` breaks `schema`, as "node.router: ..."; empty when it fits. A keyword the checker
/// does not know ends the process.
std::vector<std::string> schema_faults(const Json& schema, const Json& value,
                                       const std::string& path = {});

}  // namespace primerl::testing
