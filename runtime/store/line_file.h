/// LineFile: an append-only file of lines (JSON objects) that a crash leaves readable.
///
/// Every line goes to the operating system as one write, so a killed process loses no line that it
/// has appended; a line that did not fit on the disk is removed completely. Opening an existing
/// file cuts a torn last line, so only the one process that writes it may do so. A new file can be
/// read by its owner alone (0600): such files contain prompts and completions. Not thread-safe.
/// After an error every call returns the same error.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

/// Bytes of the whole lines of a file that somebody else may be appending to: nothing is changed.
Result<uint64_t> whole_line_bytes(const std::filesystem::path& file);

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
