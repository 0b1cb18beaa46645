/// Quoting of names in the commands that a message suggests: each must be one word of a shell.
#pragma once

#include <string>
#include <string_view>

namespace primerl {

/// `text` as one word of bash, zsh or sh: unchanged if it is plain, else in single quotes.
std::string shell_word(std::string_view text);

}  // namespace primerl
