/// How deep the keys of a TOML text nest, found without a parser: reading and keeping what is deep
/// needs a stack as deep.
#pragma once

#include <optional>
#include <string_view>

#include "graph/value.h"

namespace primerl {

/// Tables and lists in each other: parts of dotted keys (quoted ones too) and of the header above
/// them, and every open brace or bracket.
inline constexpr int kTomlDepthMax = 256;

/// Where the first key stands that goes deeper; none in a text that may be read. Comments and
/// strings count nothing. A text that is no TOML has an answer, too.
std::optional<Position> too_deep_key(std::string_view text);

}  // namespace primerl
