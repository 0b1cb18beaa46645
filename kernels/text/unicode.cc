#include "kernels/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>

#include "kernels/text/newer_characters.h"

namespace primerl {
namespace {

uint8_t byte_at(std::string_view text, size_t offset) { return static_cast<uint8_t>(text[offset]); }

/// Properties of a character that follow from its first byte (Unicode 15, table 3-7).
struct Lead {
  size_t size = 0;  // 0: cannot begin a character
  uint8_t second_min = 0x80, second_max = 0xBF;
};

Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {2};
  if (byte < 0xF0)
    return {3, static_cast<uint8_t>(byte == 0xE0 ? 0xA0 : 0x80),
            static_cast<uint8_t>(byte == 0xED ? 0x9F : 0xBF)};
  if (byte < 0xF5)
    return {4, static_cast<uint8_t>(byte == 0xF0 ? 0x90 : 0x80),
            static_cast<uint8_t>(byte == 0xF4 ? 0x8F : 0xBF)};
  return {};
}

/// The number of bytes at `offset` that are a valid prefix of a character: its size if complete.
size_t valid_part(std::string_view text, size_t offset, const Lead& lead) {
  size_t size = 1;
  while (size < lead.size && offset + size < text.size()) {
    const uint8_t byte = byte_at(text, offset + size);
    const uint8_t low = size == 1 ? lead.second_min : 0x80;
    const uint8_t high = size == 1 ? lead.second_max : 0xBF;
    if (byte < low || byte > high) break;
    ++size;
  }
  return size;
}

bool is_in(std::span<const CharacterRange> ranges, uint32_t code_point) {
  const auto after = std::ranges::upper_bound(ranges, code_point, {}, &CharacterRange::first);
  return after != ranges.begin() && code_point <= std::prev(after)->last;
}

}  // namespace

CodePoint code_point_at(std::string_view text, size_t offset) {
  const uint8_t first = byte_at(text, offset);
  if (first < 0x80) return {first, 1};
  const Lead lead = lead_of(first);
  if (lead.size == 0 || valid_part(text, offset, lead) != lead.size) return {};
  uint32_t value = first & (0xFFU >> (lead.size + 1));
  for (size_t i = 1; i < lead.size; ++i) value = value << 6 | (byte_at(text, offset + i) & 0x3FU);
  return {value, lead.size};
}

CodePoint code_point_before(std::string_view text, size_t offset) {
  size_t start = offset - 1;
  while (start > 0 && offset - start < 4 && (byte_at(text, start) & 0xC0) == 0x80) --start;
  return code_point_at(text, start);
}

void append_utf8(std::string& out, uint32_t code_point) {
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

Status check_utf8(std::string_view text) {
  for (size_t offset = 0; offset < text.size();) {
    const CodePoint character = code_point_at(text, offset);
    if (character.size == 0)
      return error(Code::kInvalid, "byte 0x{:02X} at byte offset {} is not UTF-8",
                   byte_at(text, offset), offset);
    offset += character.size;
  }
  return ok();
}

std::string to_valid_utf8(std::string bytes) {
  if (check_utf8(bytes).ok()) return bytes;
  std::string text;
  text.reserve(bytes.size() + 16);
  for (size_t offset = 0; offset < bytes.size();) {
    const Lead lead = lead_of(byte_at(bytes, offset));
    const size_t size = valid_part(bytes, offset, lead);
    if (lead.size != 0 && size == lead.size)
      text.append(bytes, offset, size);
    else
      text.append("\xEF\xBF\xBD");
    offset += size;
  }
  return text;
}

namespace {

/// Appends the normal form that utf8proc computes.
Status append_normal_form(std::string& out, std::string_view text, NormalForm form) {
  if (text.empty()) return ok();
  const bool is_composed = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool is_compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  int options = UTF8PROC_STABLE | (is_composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
  if (is_compatible) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* bytes = nullptr;
  const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                 static_cast<utf8proc_ssize_t>(text.size()), &bytes,
                                 static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(bytes, &std::free);
  if (size < 0)
    return error(Code::kInvalid, "the text cannot be normalized: {}", utf8proc_errmsg(size));
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
  return ok();
}

}  // namespace

Result<std::string> to_normal_form(std::string_view text, NormalForm form) {
  bool is_ascii = true;
  for (const char byte : text) is_ascii = is_ascii && static_cast<uint8_t>(byte) < 0x80;
  if (is_ascii) return std::string(text);
  // A character without a normal form is a starter that composes with nothing: the texts on both
  // sides of it have their normal forms independently.
  const auto ranges = unnormalized_ranges();
  std::string out;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint character = code_point_at(text, at);
    if (character.value >= ranges.front().first && is_in(ranges, character.value)) {
      RETURN_IF_ERROR(append_normal_form(out, text.substr(begin, at - begin), form));
      out.append(text.substr(at, character.size));
      begin = at + character.size;
    }
    at += character.size;
  }
  RETURN_IF_ERROR(append_normal_form(out, text.substr(begin), form));
  return out;
}

Result<std::string> to_nfc(std::string_view text) { return to_normal_form(text, NormalForm::kNfc); }

std::string to_lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint character = code_point_at(text, at);
    at += character.size;
    if (character.value == 0x130) {
      out += "i\u0307";  // the one letter whose lower case is two characters
      continue;
    }
    append_utf8(out, to_lower(character.value));
  }
  return out;
}

uint32_t to_upper(uint32_t code_point) {
  return static_cast<uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code_point)));
}

uint32_t to_lower(uint32_t code_point) {
  const auto capitals = newer_capitals();
  const auto after = std::ranges::upper_bound(capitals, code_point, {}, &Capitals::first);
  if (after != capitals.begin() && code_point <= std::prev(after)->last)
    return static_cast<uint32_t>(static_cast<int32_t>(code_point) + std::prev(after)->distance);
  return static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point)));
}

bool is_white_space(uint32_t code_point) {
  if (code_point < 0x80) return code_point == ' ' || (code_point >= '\t' && code_point <= '\r');
  if (code_point == 0x85) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

bool is_word_character(uint32_t code_point) {
  if (code_point == 0x200C || code_point == 0x200D) return true;  // Join_Control
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return is_in(more_word_ranges(), code_point);
  }
}

bool is_number(uint32_t code_point) { return is_in(number_ranges(), code_point); }

bool is_punctuation(uint32_t code_point) { return is_in(punctuation_ranges(), code_point); }

std::string describe_code_point(uint32_t code_point) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  const bool is_printable = category != UTF8PROC_CATEGORY_CC && category != UTF8PROC_CATEGORY_CF &&
                            category != UTF8PROC_CATEGORY_CS && category != UTF8PROC_CATEGORY_CO &&
                            category != UTF8PROC_CATEGORY_CN && category != UTF8PROC_CATEGORY_ZL &&
                            category != UTF8PROC_CATEGORY_ZP;
  if (!is_printable) return fmt::format("U+{:04X}", code_point);
  std::string text;
  append_utf8(text, code_point);
  return fmt::format("'{}' (U+{:04X})", text, code_point);
}

}  // namespace primerl
