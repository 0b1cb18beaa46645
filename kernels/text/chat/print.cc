// Texts of values: `{{ value }}` and tojson.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "kernels/text/chat/evaluator.h"
#include "kernels/text/chat/strings.h"
#include "kernels/text/unicode.h"

namespace primerl::chat {
namespace {

/// Appends the bytes of `text` with `escape(character)` for the characters that have one.
template <class Escape>
void append_escaped(TextBuilder& out, const Text& text, Escape&& escape) {
  text.for_each_run(0, text.bytes.size(), [&](size_t begin, size_t end, Origin origin) {
    size_t done = begin;
    for (size_t i = begin; i < end;) {
      const auto byte = static_cast<unsigned char>(text.bytes[i]);
      if (byte >= 0x20 && byte < 0x7F && byte != '"' && byte != '\'' && byte != '\\') {
        ++i;
        continue;
      }
      const CodePoint c = code_point_at(text.bytes, i);
      const std::string escaped = escape(c.value);
      if (!escaped.empty()) {
        out.append(text.bytes.substr(done, i - done), origin);
        out.append(escaped, origin);
        done = i + c.size;
      }
      i += std::max<size_t>(c.size, 1);
    }
    out.append(text.bytes.substr(done, end - done), origin);
  });
}

std::string short_escape(uint32_t c) {
  if (c == '\\') return "\\\\";
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  return {};
}

void append_python_string(TextBuilder& out, const Text& text) {
  const bool has_single = text.bytes.find('\'') != std::string_view::npos;
  const char quote = has_single && text.bytes.find('"') == std::string_view::npos ? '"' : '\'';
  const std::string_view mark(&quote, 1);
  out.append(mark, text.summary());
  append_escaped(out, text, [&](uint32_t c) -> std::string {
    if (c == static_cast<uint32_t>(quote)) return std::string("\\") + quote;
    if (std::string known = short_escape(c); !known.empty()) return known;
    if (c < 0x20 || (c >= 0x7F && c < 0xA1) || c == 0xAD)
      return c < 0x100 ? fmt::format("\\x{:02x}", c) : "";
    return {};
  });
  out.append(mark, text.summary());
}

void append_python(TextBuilder& out, const Value& value) {
  if (value.is_text()) return append_python_string(out, value.as_text());
  const Origin origin = value.origin();
  if (value.is_list()) {
    const bool is_tuple = value.is(Kind::kTuple);
    out.append(is_tuple ? "(" : "[", origin);
    for (size_t i = 0; i < value.items().size(); ++i) {
      if (i > 0) out.append(", ", origin);
      append_python(out, value.items()[i]);
    }
    out.append(is_tuple ? (value.items().size() == 1 ? ",)" : ")") : "]", origin);
    return;
  }
  if (value.is_dict()) {
    out.append("{", origin);
    bool is_first = true;
    for (const auto& [key, each] : value.as_dict().entries) {
      if (!is_first) out.append(", ", origin);
      is_first = false;
      append_python(out, key);
      out.append(": ", origin);
      append_python(out, each);
    }
    out.append("}", origin);
    return;
  }
  if (value.is(Kind::kUndefined))
    out.append("Undefined", origin);
  else
    append_text(out, value);
}

std::string json_escape(uint32_t c, bool ascii) {
  if (c == '"') return "\\\"";
  if (std::string known = short_escape(c); !known.empty()) return known;
  if (c == '\b') return "\\b";
  if (c == '\f') return "\\f";
  if (c < 0x20) return fmt::format("\\u{:04x}", c);
  if (!ascii || c < 0x7F) return {};
  if (c == 0x7F) return {};
  if (c < 0x10000) return fmt::format("\\u{:04x}", c);
  return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((c - 0x10000) >> 10),
                     0xDC00 + ((c - 0x10000) & 0x3FF));
}

void append_json_string(TextBuilder& out, const Text& text, bool ascii, Origin quotes) {
  out.append("\"", quotes);
  append_escaped(out, text, [&](uint32_t c) { return json_escape(c, ascii); });
  out.append("\"", quotes);
}

/// Items or entries between brackets; `write(i)` writes one and returns what JSON does not have.
template <class Write>
std::string_view append_json_list(TextBuilder& out, std::string_view brackets, size_t count,
                                  Origin origin, const JsonStyle& style, int depth, Write&& write) {
  out.append(brackets.substr(0, 1), origin);
  const auto new_line = [&](int levels) {
    if (style.indent < 0) return;
    out.append("\n" + std::string(static_cast<size_t>(style.indent * levels), ' '), origin);
  };
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) out.append(style.item_separator, origin);
    new_line(depth + 1);
    if (const std::string_view fault = write(i); !fault.empty()) return fault;
  }
  if (count > 0) new_line(depth);
  out.append(brackets.substr(1), origin);
  return {};
}

std::string_view append_json_dict(TextBuilder& out, const Value& value, const JsonStyle& style,
                                  int depth) {
  std::vector<const std::pair<Value, Value>*> entries;
  for (const auto& entry : value.as_dict().entries) entries.push_back(&entry);
  if (style.sorts_keys)
    std::stable_sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) {
      int order = 0;
      return compare(a->first, b->first, order) && order < 0;
    });
  const Origin origin = value.origin();
  return append_json_list(out, "{}", entries.size(), origin, style, depth,
                          [&](size_t i) -> std::string_view {
                            const auto& [key, each] = *entries[i];
                            if (key.is_text()) {
                              append_json_string(out, key.as_text(), style.ascii, origin);
                            } else {
                              out.append("\"", origin);
                              append_json(out, key, style);
                              out.append("\"", origin);
                            }
                            out.append(style.key_separator, origin);
                            return append_json(out, each, style, depth + 1);
                          });
}

}  // namespace

std::string python_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[64];
  const auto end =
      std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific);
  const std::string text(digits, end.ptr);
  const int exponent = std::stoi(text.substr(text.find('e') + 1));
  if (exponent < -4 || exponent >= 16) {
    std::string mantissa = text.substr(0, text.find('e'));
    return fmt::format("{}e{}{:02}", mantissa, exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  const auto fixed = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed);
  std::string plain(digits, fixed.ptr);
  if (plain.find('.') == std::string::npos) plain += ".0";
  return plain;
}

void append_text(TextBuilder& out, const Value& value, Origin mark) {
  const Origin origin = value.is_text() ? 0 : value.origin() | mark;
  switch (value.kind()) {
    case Kind::kUndefined:
      return;
    case Kind::kNone:
      return out.append("None", origin);
    case Kind::kBool:
      return out.append(value.is_true() ? "True" : "False", origin);
    case Kind::kInt:
      return out.append(fmt::format("{}", value.as_int()), origin);
    case Kind::kFloat:
      return out.append(python_float(value.as_real()), origin);
    case Kind::kText:
      return out.append(value.as_text(), mark);
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict: {
      TextBuilder shown_value;
      append_python(shown_value, value);
      return out.append(*std::move(shown_value).finish(), mark);
    }
    default:
      return out.append(fmt::format("<{}>", name_of(value.kind())), origin);
  }
}

std::string_view append_json(TextBuilder& out, const Value& value, const JsonStyle& style,
                             int depth) {
  const Origin origin = value.is_text() ? value.as_text().summary() : value.origin();
  switch (value.kind()) {
    case Kind::kNone:
      out.append("null", origin);
      return {};
    case Kind::kBool:
      out.append(value.is_true() ? "true" : "false", origin);
      return {};
    case Kind::kInt:
      out.append(fmt::format("{}", value.as_int()), origin);
      return {};
    case Kind::kFloat: {
      const double real = value.as_real();
      out.append(std::isnan(real)   ? "NaN"
                 : std::isinf(real) ? (real < 0 ? "-Infinity" : "Infinity")
                                    : python_float(real),
                 origin);
      return {};
    }
    case Kind::kText:
      append_json_string(out, value.as_text(), style.ascii, origin);
      return {};
    case Kind::kList:
    case Kind::kTuple:
      return append_json_list(out, "[]", value.items().size(), origin, style, depth, [&](size_t i) {
        return append_json(out, value.items()[i], style, depth + 1);
      });
    case Kind::kDict:
      return append_json_dict(out, value, style, depth);
    default:
      return name_of(value.kind());
  }
}

}  // namespace primerl::chat
