/// Size and SHA-256 of files that a run reads from outside: data sets and Python files. Stateless,
/// any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

struct FileDigest {
  std::string sha256;  // 64 lower-case hexadecimal digits; "" = not stated
  int64_t bytes = -1;  // -1 = not stated
};

Result<FileDigest> file_digest(const std::string& file);

/// kInvalid, with the values of both, if the file's content is another one.
Status check_file_digest(const std::string& file, const FileDigest& expected);

/// The SHA-256 of a text, in the same form.
std::string text_sha256(std::string_view text);

}  // namespace primerl
