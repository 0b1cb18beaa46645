#include "graph/base/terminal_text.h"

#include <fmt/format.h>

#include <cstdint>

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

}  // namespace primerl
