/// The SHA-256 of files that a run reads from outside: data sets and Python files. Stateless, any
/// thread.
#pragma once

#include <string>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

/// As 64 lower-case hexadecimal digits.
Result<std::string> file_sha256(const std::string& file);

/// kInvalid, with both digests, if the file's content is another one.
Status check_file_sha256(const std::string& file, const std::string& expected);

/// The SHA-256 of a text, in the same form.
std::string text_sha256(std::string_view text);

}  // namespace primerl
