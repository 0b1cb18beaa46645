/// Text from elsewhere (a file, a model, another process), made safe to print on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace primerl {

/// `text` with control characters written as in TOML (\\u001B) and bytes that are not UTF-8 as
/// \\xFF. If `keeps_lines`, newlines and tabs stay.
std::string terminal_text(std::string_view text, bool keeps_lines = true);

}  // namespace primerl
