/// Names in commands that a message suggests: what a person pastes must be one word of a shell.
#pragma once

#include <string>
#include <string_view>

namespace primerl {

/// `text` as one word of bash, zsh or sh: unchanged when it is plain, else in single quotes.
std::string shell_word(std::string_view text);

}  // namespace primerl
