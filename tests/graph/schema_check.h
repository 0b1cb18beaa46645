/// The part of JSON Schema draft-04 that graph_schema() uses, to validate a graph file with it.
#pragma once

#include <string>
#include <vector>

#include "graph/base/json.h"
#include "graph/value.h"

namespace primerl::testing {

/// A TOML table as JSON.
Json to_json(const Table& table);

/// Where `value` does not match `schema`, as "node.router: ..."; empty if it matches. A keyword
/// that the checker does not know ends the process.
std::vector<std::string> schema_faults(const Json& schema, const Json& value,
                                       const std::string& path = {});

}  // namespace primerl::testing
