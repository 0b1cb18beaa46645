/// Writes a regular expression of Oniguruma, which tokenizer.json has, anew for PCRE2.
///
/// Oniguruma (its own syntax, as the `tokenizers` package uses it) and PCRE2 differ: `^` and `$`
/// are ends of lines, `.` is stopped by a line feed alone, `(?m)` lets it match one, `{n,m}+`
/// repeats a group, `[a&&b]` intersects sets, `\h` is a hexadecimal digit, `\w`, `\s` and scripts
/// are other characters. Syntax that is not known here is refused with its byte offset. Pure
/// function.
#pragma once

#include <string>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

inline constexpr int kPatternDepthMax = 64;  // groups and sets within each other

/// For PCRE2 with UTF, UCP and MULTILINE, where a newline is a line feed.
Result<std::string> pcre2_pattern(std::string_view oniguruma);

}  // namespace primerl
