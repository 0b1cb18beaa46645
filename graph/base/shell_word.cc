#include "graph/base/shell_word.h"

#include <algorithm>

namespace primerl {
namespace {

bool is_plain(char c) {
  constexpr std::string_view kPlain = "_@%+=:,./-";
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         kPlain.find(c) != std::string_view::npos;
}

}  // namespace

std::string shell_word(std::string_view text) {
  // zsh expands a word that begins with '='.
  if (!text.empty() && text.front() != '=' && std::all_of(text.begin(), text.end(), is_plain))
    return std::string(text);
  std::string word = "'";
  for (const char c : text) {
    if (c == '\'')
      word += "'\\''";
    else
      word += c;
  }
  return word + "'";
}

}  // namespace primerl
