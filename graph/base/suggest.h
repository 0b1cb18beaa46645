/// The near miss: which known name did a person mean?
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace primerl {

/// The name nearest to `word` within edit distance 2 (1 for words of up to 3 letters), transposed
/// neighbours counting as one edit and case as none; empty when none is near. Ties go to the first
/// in `names`.
std::string nearest_name(std::string_view word, std::span<const std::string> names);

/// "a, b and c", in the order given; an empty name is shown as "".
std::string join_names(std::span<const std::string> names);

}  // namespace primerl
