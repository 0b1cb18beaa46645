#include "kernels/text/chat/strings.h"

#include <algorithm>

#include "kernels/text/unicode.h"

namespace primerl::chat {
namespace {

bool is_python_space(uint32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

/// Size of the character at `offset` if it is stripped, else 0.
size_t strips(std::string_view text, CodePoint c, size_t begin, std::string_view chars) {
  if (chars.empty()) return is_python_space(c.value) ? c.size : 0;
  return chars.find(text.substr(begin, c.size)) != std::string_view::npos ? c.size : 0;
}

bool is_line_end(uint32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

std::vector<Value> split_at_space(const TextRef& text, int64_t splits_max) {
  std::vector<Value> pieces;
  const std::string_view bytes = text->bytes;
  size_t i = 0;
  for (;;) {
    while (i < bytes.size()) {
      const CodePoint c = code_point_at(bytes, i);
      if (!is_python_space(c.value)) break;
      i += c.size;
    }
    if (i >= bytes.size()) return pieces;
    if (splits_max >= 0 && static_cast<int64_t>(pieces.size()) == splits_max) {
      pieces.push_back(Value::text(stripped(part_of(text, i, bytes.size()), Side::kRight, {})));
      return pieces;
    }
    const size_t begin = i;
    while (i < bytes.size()) {
      const CodePoint c = code_point_at(bytes, i);
      if (is_python_space(c.value)) break;
      i += c.size;
    }
    pieces.push_back(Value::text(part_of(text, begin, i)));
  }
}

void append_cased(std::string& out, uint32_t c, bool upper) {
  if (upper && c == 0xDF)
    out += "SS";
  else
    append_utf8(out, upper ? to_upper(c) : to_lower(c));
}

}  // namespace

std::vector<size_t> character_offsets_of(std::string_view text) {
  std::vector<size_t> offsets;
  for (size_t i = 0; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) offsets.push_back(i);
  offsets.push_back(text.size());
  return offsets;
}

TextRef stripped(const TextRef& text, Side side, std::string_view chars) {
  const std::string_view bytes = text->bytes;
  size_t begin = 0;
  size_t end = bytes.size();
  while (side != Side::kRight && begin < end) {
    const size_t size = strips(bytes, code_point_at(bytes, begin), begin, chars);
    if (size == 0) break;
    begin += size;
  }
  while (side != Side::kLeft && begin < end) {
    const CodePoint last = code_point_before(bytes, end);
    const size_t size = strips(bytes, last, end - last.size, chars);
    if (size == 0) break;
    end -= size;
  }
  return part_of(text, begin, end);
}

std::vector<Value> split(const TextRef& text, std::string_view separator, int64_t splits_max) {
  if (separator.empty()) return split_at_space(text, splits_max);
  std::vector<Value> pieces;
  size_t begin = 0;
  while (splits_max < 0 || static_cast<int64_t>(pieces.size()) < splits_max) {
    const size_t end = text->bytes.find(separator, begin);
    if (end == std::string_view::npos) break;
    pieces.push_back(Value::text(part_of(text, begin, end)));
    begin = end + separator.size();
  }
  pieces.push_back(Value::text(part_of(text, begin, text->bytes.size())));
  return pieces;
}

std::vector<Value> split_from_right(const TextRef& text, std::string_view separator,
                                    int64_t splits_max) {
  std::vector<Value> pieces;
  size_t end = text->bytes.size();
  while (splits_max < 0 || static_cast<int64_t>(pieces.size()) < splits_max) {
    if (end < separator.size()) break;
    const size_t begin = text->bytes.rfind(separator, end - separator.size());
    if (begin == std::string_view::npos) break;
    pieces.push_back(Value::text(part_of(text, begin + separator.size(), end)));
    end = begin;
  }
  pieces.push_back(Value::text(part_of(text, 0, end)));
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

std::vector<Value> split_lines(const TextRef& text, bool keeps_ends) {
  std::vector<Value> lines;
  const std::string_view bytes = text->bytes;
  size_t begin = 0;
  for (size_t i = 0; i < bytes.size();) {
    const CodePoint c = code_point_at(bytes, i);
    const size_t end = i;
    i += c.size;
    if (!is_line_end(c.value)) continue;
    if (c.value == '\r' && i < bytes.size() && bytes[i] == '\n') ++i;
    lines.push_back(Value::text(part_of(text, begin, keeps_ends ? i : end)));
    begin = i;
  }
  if (begin < bytes.size()) lines.push_back(Value::text(part_of(text, begin, bytes.size())));
  return lines;
}

TextRef replaced(const TextRef& text, std::string_view old, const Text& by, int64_t count) {
  TextBuilder made;
  size_t begin = 0;
  if (old.empty()) {  // before every character and at the end
    for (const size_t offset : character_offsets_of(text->bytes)) {
      made.append(*text, begin, offset);
      begin = offset;
      if (count != 0) made.append(by);
      if (count > 0) --count;
    }
    return std::move(made).finish();
  }
  for (; count != 0; --count) {
    const size_t end = text->bytes.find(old, begin);
    if (end == std::string_view::npos) break;
    made.append(*text, begin, end);
    made.append(by);
    begin = end + old.size();
  }
  if (begin == 0) return text;
  made.append(*text, begin, text->bytes.size());
  return std::move(made).finish();
}

TextRef in_case(const Text& text, Case to) {
  static constexpr std::string_view kWordBreaks = "-({[< \t\n\r\f\v";
  TextBuilder made;
  bool is_first = true;
  text.for_each_run(0, text.bytes.size(), [&](size_t begin, size_t end, Origin origin) {
    std::string cased;
    for (size_t i = begin; i < end;) {
      const CodePoint c = code_point_at(text.bytes, i);
      append_cased(cased, c.value, to == Case::kUpper || (to != Case::kLower && is_first));
      is_first = to == Case::kTitle && c.value < 0x80 &&
                 kWordBreaks.find(static_cast<char>(c.value)) != std::string_view::npos;
      i += c.size;
    }
    made.append(cased, origin);
  });
  return std::move(made).finish();
}

TextRef indented(const TextRef& text, std::string_view indent, bool first, bool blank) {
  TextBuilder whole;
  whole.append(*text);
  whole.append("\n", kFromTemplate);
  const auto lines = split_lines(std::move(whole).finish(), false);
  TextBuilder made;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) made.append("\n", kFromTemplate);
    const bool is_indented = i == 0 ? first : blank || !lines[i].bytes().empty();
    if (is_indented) made.append(indent, kFromTemplate);
    made.append(lines[i].as_text());
  }
  return std::move(made).finish();
}

}  // namespace primerl::chat
