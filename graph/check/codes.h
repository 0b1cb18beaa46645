/// The table of every code that `check` can report. `explain CODE` and docs/errors.md are made from
/// it.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace primerl {

struct ErrorCode {
  std::string_view code;   // "G012"
  std::string_view title;  // "unknown port"
  std::string_view text;   // what it means and what to do, one paragraph
};

/// In order of codes.
std::span<const ErrorCode> error_codes();
/// Null if there is no such code; "g012" and "12" find G012 too.
const ErrorCode* find_error_code(std::string_view code);
/// The text that `explain G012` prints.
std::string explain(const ErrorCode& code);
/// The whole text of docs/errors.md.
std::string errors_markdown();

}  // namespace primerl
