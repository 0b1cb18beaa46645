/// String functions of Python on texts with origins: every byte of a result keeps its origin.
///
/// Pure; internal to this folder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/text/chat/value.h"

namespace primerl::chat {

enum class Side : uint8_t { kBoth, kLeft, kRight };
enum class Case : uint8_t { kUpper, kLower, kCapital, kTitle };

/// `chars` empty: white space.
TextRef stripped(const TextRef& text, Side side, std::string_view chars);
/// Pieces between `separator`; empty: between white space. At most `splits_max` cuts if >= 0.
std::vector<Value> split(const TextRef& text, std::string_view separator, int64_t splits_max);
std::vector<Value> split_from_right(const TextRef& text, std::string_view separator,
                                    int64_t splits_max);
std::vector<Value> split_lines(const TextRef& text, bool keeps_ends);
/// At most `count` places if >= 0.
TextRef replaced(const TextRef& text, std::string_view old, const Text& by, int64_t count);
/// Offsets of the characters, and the end.
std::vector<size_t> character_offsets_of(std::string_view text);
TextRef in_case(const Text& text, Case to);
TextRef indented(const TextRef& text, std::string_view indent, bool first, bool blank);
/// A float as Python's repr writes it: the shortest digits that give the same value.
std::string python_float(double value);

struct JsonStyle {
  int indent = -1;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool ascii = false;
  bool sorts_keys = false;
};
/// As json.dumps; the name of what JSON does not have, or empty.
std::string_view append_json(TextBuilder& out, const Value& value, const JsonStyle& style,
                             int depth = 0);

}  // namespace primerl::chat
