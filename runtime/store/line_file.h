/// LineFile: an append-only file of lines (JSON objects) that stays readable after a crash.
///
/// Every line is one write to the operating system, so a killed process loses no appended line. If
/// a line does not fit on the disk, its bytes are removed again. Opening an existing file removes
/// an incomplete last line, so only the one process that writes the file may open it. Only the
/// owner can read a new file (0600), because such files contain prompts and completions. Not
/// thread-safe. After an error every call returns the same error.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

/// Size in bytes of the complete lines of a file that another process may be appending to. The file
/// is not changed.
Result<uint64_t> complete_line_bytes(const std::filesystem::path& file);

class LineFile {
 public:
  static constexpr size_t kLineBytesMax = size_t{64} << 20;

  static Result<std::unique_ptr<LineFile>> open(const std::filesystem::path& file);
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;
  ~LineFile();

  /// `line` without its newline and without newlines inside.
  Status append(std::string_view line);

 private:
  LineFile(std::filesystem::path file, int fd, int64_t size);

  const std::filesystem::path file_;
  const int fd_;
  int64_t size_;  // bytes of whole lines
  std::string buffer_;
  std::optional<Error> fault_;
};

}  // namespace primerl
