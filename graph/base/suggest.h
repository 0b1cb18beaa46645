/// Finds the known name that a person probably meant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace primerl {

/// The name nearest to `word` within edit distance 2 (1 for words of up to 3 letters); empty if
/// there is none. Two swapped adjacent letters count as one edit, and upper and lower case are
/// equal. If several are equally near, the first in `names` is returned.
std::string nearest_name(std::string_view word, std::span<const std::string> names);

/// "a, b and c", in the given order; an empty name is shown as "".
std::string join_names(std::span<const std::string> names);

}  // namespace primerl
