/// FollowedLines: a line file that a recovered run writes once more. Lines that are there already
/// are compared, not written again; lines that a run had written beyond the end of its record are
/// cut.
///
///   auto lines = FollowedLines::open(file, bytes_before);   // where the recorded start began
///   while (lines->take(line))   ...                          // false: nothing is left to compare
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
  /// A file that is not there has no lines. A torn last line counts for nothing.
  static Result<std::unique_ptr<FollowedLines>> open(const std::filesystem::path& file,
                                                     uint64_t bytes_before);
  /// True: the next line is there and equal. False: no line is left; append it. kCorrupt: the next
  /// line is different.
  Result<bool> take(std::string_view line);
  /// Cuts what was not taken.
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
