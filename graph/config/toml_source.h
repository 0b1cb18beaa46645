/// Reads TOML text into Values with the place of every key and value. The one user of toml++.
///
/// Columns are bytes, from 1. Duplicate keys are reported each with a note where the first is, and
/// reading goes on; any other fault of syntax is reported and ends the reading of that text.
#pragma once

#include <optional>
#include <string_view>

#include "graph/config/diagnostic.h"
#include "graph/value.h"

namespace primerl {

inline constexpr size_t kTomlBytesMax = size_t{16} << 20;

/// The table of `source`'s text; nothing when it is no TOML (G001) or too long.
std::optional<Table> parse_toml(const Sources& sources, SourceId source, Diagnostics& diagnostics);

/// Reads the source as one `a.b.c=value` of a `--set` flag. What is no TOML value is a bare string:
/// `node.router.policy=random` needs no quotes.
std::optional<Table> parse_set(Sources& sources, SourceId source, Diagnostics& diagnostics);

/// The span of `length` bytes at `offset` inside a string value, or the whole value where the text
/// was written with escapes.
Span span_inside(const Sources& sources, const Value& value, size_t offset, size_t length);

}  // namespace primerl
