/// Generated tables of characters as the `tokenizers` package classifies them: those that Unicode
/// got after version 14, which PCRE2 10.42 has, and its numbers and punctuation.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace primerl {

/// Characters [first, last] that share all of this.
struct NewerCharacters {
  uint32_t first = 0;
  uint32_t last = 0;
  std::string_view category;  // "Lo"
  bool is_alphabetic = false;
  bool is_lowercase = false;
  bool is_uppercase = false;
  std::string_view script;  // "Han"; empty: one that no pattern can name here
};

/// Characters [first, last].
struct CharacterRange {
  uint32_t first = 0;
  uint32_t last = 0;
};

// All in ascending order.
std::span<const NewerCharacters> newer_characters();
std::span<const CharacterRange> number_ranges();       // categories Nd, Nl and No
std::span<const CharacterRange> punctuation_ranges();  // of an older Unicode, and ASCII's marks

}  // namespace primerl
