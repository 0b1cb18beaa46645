/// Generated tables of characters as the `tokenizers` package treats them, where PCRE2 10.42
/// (Unicode 14) or utf8proc (15 in Debian 12) differ: scripts/make_unicode_table.py writes them.
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

/// Characters [first, last] whose lower case is `distance` further.
struct Capitals {
  uint32_t first = 0;
  uint32_t last = 0;
  int32_t distance = 0;
};

// All in ascending order.
std::span<const NewerCharacters> newer_characters();
std::span<const CharacterRange> number_ranges();       // categories Nd, Nl and No
std::span<const CharacterRange> punctuation_ranges();  // of an older Unicode, and ASCII's marks
/// Characters that no normal form changes, composes or reorders, because the normal forms of
/// `tokenizers` are those of Unicode 9.
std::span<const CharacterRange> unnormalized_ranges();
/// Characters of words whose category in Unicode 14 does not say so.
std::span<const CharacterRange> more_word_ranges();
std::span<const Capitals> newer_capitals();  // since Unicode 15

}  // namespace primerl
