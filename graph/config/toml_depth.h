/// How deep the keys of a TOML text nest, found without a parser: parsing and storing deep nesting
/// would need an equally deep stack.
#pragma once

#include <optional>
#include <string_view>

#include "graph/value.h"

namespace primerl {

/// Most tables and lists inside each other: parts of dotted keys (also quoted ones), parts of the
/// latest header, and open braces and brackets.
inline constexpr int kTomlDepthMax = 256;

/// Position of the first key that is nested deeper; none if the text may be parsed. Comments and
/// strings do not count. A text that is not TOML gets an answer too.
std::optional<Position> too_deep_key(std::string_view text);

}  // namespace primerl
