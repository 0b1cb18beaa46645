/// FollowedLines: a line file that a resumed run writes once more. Existing lines are compared, not
/// written again. Lines after the end of the record are removed.
///
///   auto lines = FollowedLines::open(file, bytes_before);   // size when the recorded start began
///   while (lines->take(line))   ...                          // false: no line is left to compare
///   lines->cut();                                           // the record has ended
///
/// Owns only a stream for reading. Not thread-safe.
#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

class FollowedLines {
 public:
  /// A missing file has no lines. An incomplete last line is ignored.
  static Result<std::unique_ptr<FollowedLines>> open(const std::filesystem::path& file,
                                                     uint64_t bytes_before);
  /// True: the next line exists and is equal. False: no line is left, so append it. kCorrupt: the
  /// next line is different.
  Result<bool> take(std::string_view line);
  /// Removes the lines that were not compared.
  Status cut();

 private:
  FollowedLines(std::filesystem::path file, uint64_t taken);

  const std::filesystem::path file_;
  std::ifstream stream_;
  uint64_t taken_;  // bytes
  uint64_t num_taken_ = 0;
  bool is_over_ = false;
};

}  // namespace primerl
