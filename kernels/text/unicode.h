/// The Unicode functions that tokenizers need: UTF-8 in and out, normal forms, lower case, and
/// character classes.
///
/// Pure functions, safe from any thread. Offsets and sizes are bytes. Characters are treated as the
/// `tokenizers` package treats them, whose tables of Unicode have other versions than utf8proc's
/// (newer_characters.h). The only file that uses utf8proc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

/// One decoded character of a text.
struct CodePoint {
  uint32_t value = 0;
  size_t size = 0;  // bytes; 0 if they are not valid UTF-8
};

/// The character at `offset` (< text.size()), strict: no overlong form, no surrogate, <= U+10FFFF.
CodePoint code_point_at(std::string_view text, size_t offset);
/// The character that ends at `offset` (> 0) of valid UTF-8.
CodePoint code_point_before(std::string_view text, size_t offset);
void append_utf8(std::string& out, uint32_t code_point);

/// kInvalid, with the first invalid byte and its offset.
Status check_utf8(std::string_view text);
/// Replaces every maximal invalid part by U+FFFD, as the Unicode standard recommends.
std::string to_valid_utf8(std::string bytes);

enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

/// The normalization form of valid UTF-8. Characters newer than Unicode 9 stay as they are.
Result<std::string> to_normal_form(std::string_view text, NormalForm form);
Result<std::string> to_nfc(std::string_view text);

/// Every character in lower case, without regard to adjacent ones.
std::string to_lowercase(std::string_view text);

/// One character for one: "ß" stays.
uint32_t to_upper(uint32_t code_point);
uint32_t to_lower(uint32_t code_point);

bool is_white_space(uint32_t code_point);     // the White_Space property
bool is_word_character(uint32_t code_point);  // letters, marks, digits, connectors: regex \w
bool is_number(uint32_t code_point);          // categories Nd, Nl and No
bool is_punctuation(uint32_t code_point);     // categories P*, and all of ASCII's marks

/// "'é' (U+00E9)", or "U+000A" if it is not printable: for error texts.
std::string describe_code_point(uint32_t code_point);

}  // namespace primerl
