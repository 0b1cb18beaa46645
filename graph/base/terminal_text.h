/// Text from elsewhere (a file, a model, another process), made safe to print on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace primerl {

/// `text` with control characters written as in TOML (\\u001B) and bytes that are not UTF-8 as
/// \\xFF. If `keeps_lines`, newlines and tabs stay.
std::string terminal_text(std::string_view text, bool keeps_lines = true);

/// Columns that one line of UTF-8 has on a terminal: 2 for each wide character (East Asia, emoji),
/// none for combining marks, 1 for any other. A byte that is not UTF-8 counts as 1.
size_t num_columns(std::string_view text);
/// The longest beginning, and the longest end, with at most `columns_max` columns. No character is
/// cut, and combining marks stay with their character.
std::string_view first_columns(std::string_view text, size_t columns_max);
std::string_view last_columns(std::string_view text, size_t columns_max);

}  // namespace primerl
