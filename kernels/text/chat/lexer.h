/// Cuts a chat template into tokens, with the rules of transformers: `trim_blocks`,
/// `lstrip_blocks`,
/// `-` and `+` at the ends of a tag, one newline at the end of the template left out.
///
/// Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/result.h"

namespace primerl::chat {

enum class TokenKind : uint8_t {
  kData,
  kPrintBegin,
  kPrintEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kInt,
  kFloat,
  kString,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // a string without its quotes
  uint32_t offset = 0;
};

/// Line and column, both from 1, of a byte of the template.
struct Position {
  size_t line = 1;
  size_t column = 1;
};
Position position_of(std::string_view source, size_t offset);

/// `\r\n` becomes `\n`, and one newline at the end is left out, as Jinja does.
std::string normalized_source(std::string_view source);

/// The tokens of a normalized source; the last one is kEnd. Errors begin with "LINE:COLUMN: ".
Result<std::vector<Token>> tokens_of(std::string_view source);

/// An error of the template at `offset`.
template <class... Args>
Error template_error(std::string_view source, size_t offset, fmt::format_string<Args...> format,
                     Args&&... args) {
  const Position at = position_of(source, offset);
  return Error(Code::kInvalid, fmt::format("{}:{}: ", at.line, at.column) +
                                   fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace primerl::chat
