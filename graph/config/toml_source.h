/// Parses TOML text into Values, with the position of every key and value. The only user of toml++.
///
/// Columns are bytes, from 1. Each duplicate key is reported, with a note at the first one, and
/// parsing continues. Any other syntax error is reported and ends the parsing of that text.
#pragma once

#include <optional>
#include <string_view>

#include "graph/config/diagnostic.h"
#include "graph/value.h"

namespace primerl {

inline constexpr size_t kTomlBytesMax = size_t{16} << 20;

/// The table of `source`'s text; empty if it is not TOML (G001) or too long.
std::optional<Table> parse_toml(const Sources& sources, SourceId source, Diagnostics& diagnostics);

/// Parses the source as one `a.b.c=value` of a `--set` flag. A value that is not TOML is taken as a
/// string, so `node.router.policy=random` needs no quotes.
std::optional<Table> parse_set(Sources& sources, SourceId source, Diagnostics& diagnostics);

/// The span of `length` bytes at `offset` inside a string value, or of the whole value if the text
/// has escapes.
Span span_inside(const Sources& sources, const Value& value, size_t offset, size_t length);

}  // namespace primerl
