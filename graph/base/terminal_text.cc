#include "graph/base/terminal_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>

namespace primerl {
namespace {

struct Character {
  uint32_t code = 0;
  size_t num_bytes = 0;  // 0: not UTF-8
};

Character character_at(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {first, 1};
  const size_t num_bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < num_bytes) return {};
  uint32_t code = first & (0xFFU >> (num_bytes + 1));
  for (size_t i = 1; i < num_bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xD800 && code < 0xE000;
  if (code < kSmallest[num_bytes] || code > 0x10FFFF || is_surrogate) return {};
  return {code, num_bytes};
}

struct CodeRange {
  uint32_t first = 0, last = 0;
};

bool is_in_ranges(std::span<const CodeRange> ranges, uint32_t code) {
  return std::ranges::any_of(
      ranges, [code](const CodeRange& range) { return range.first <= code && code <= range.last; });
}

size_t columns_of(const Character& character) {
  static constexpr CodeRange kCombining[] = {
      {0x300, 0x36F}, {0x200B, 0x200F}, {0x20D0, 0x20FF}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}};
  static constexpr CodeRange kWide[] = {{0x1100, 0x115F},   {0x2E80, 0x303E},   {0x3040, 0xA4CF},
                                        {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},
                                        {0xFF00, 0xFF60},   {0xFFE0, 0xFFE6},   {0x1F300, 0x1F64F},
                                        {0x1F680, 0x1F6FF}, {0x1F900, 0x1F9FF}, {0x20000, 0x3FFFD}};
  if (character.num_bytes == 0) return 1;
  if (is_in_ranges(kCombining, character.code)) return 0;
  return is_in_ranges(kWide, character.code) ? 2 : 1;
}

/// The end of the longest beginning with at most `columns_max` columns.
size_t end_of_columns(std::string_view text, size_t columns_max) {
  size_t columns = 0;
  for (size_t at = 0; at < text.size();) {
    const Character character = character_at(text.substr(at));
    columns += columns_of(character);
    if (columns > columns_max) return at;
    at += std::max<size_t>(character.num_bytes, 1);
  }
  return text.size();
}

bool is_control(uint32_t code) { return code < 0x20 || (code >= 0x7F && code < 0xA0); }

}  // namespace

std::string terminal_text(std::string_view text, bool keeps_lines) {
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    const Character character = character_at(text.substr(at));
    const bool is_kept = keeps_lines && (text[at] == '\n' || text[at] == '\t');
    if (character.num_bytes == 0)
      shown += fmt::format("\\x{:02X}", static_cast<unsigned char>(text[at]));
    else if (is_control(character.code) && !is_kept)
      shown += fmt::format("\\u{:04X}", character.code);
    else
      shown += text.substr(at, character.num_bytes);
    at += character.num_bytes == 0 ? 1 : character.num_bytes;
  }
  return shown;
}

size_t num_columns(std::string_view text) {
  size_t columns = 0;
  for (size_t at = 0; at < text.size();) {
    const Character character = character_at(text.substr(at));
    columns += columns_of(character);
    at += std::max<size_t>(character.num_bytes, 1);
  }
  return columns;
}

std::string_view first_columns(std::string_view text, size_t columns_max) {
  return text.substr(0, end_of_columns(text, columns_max));
}

std::string_view last_columns(std::string_view text, size_t columns_max) {
  const size_t columns = num_columns(text);
  if (columns <= columns_max) return text;
  size_t begin = end_of_columns(text, columns - columns_max);
  // A wide character that is cut in half is left out.
  if (num_columns(text.substr(begin)) > columns_max)
    begin += std::max<size_t>(character_at(text.substr(begin)).num_bytes, 1);
  while (begin < text.size() && columns_of(character_at(text.substr(begin))) == 0)
    begin += character_at(text.substr(begin)).num_bytes;
  return text.substr(begin);
}

}  // namespace primerl
