/// Writes a Value as TOML.
#pragma once

#include <string>

#include "graph/value.h"

namespace primerl {

/// On one line; tables inline: { a = 1, b = "x" }.
std::string toml_value(const Value& value);

/// A document: one [header] for each table of tables, as a resolved graph is written.
std::string toml_document(const Table& root);

}  // namespace primerl
