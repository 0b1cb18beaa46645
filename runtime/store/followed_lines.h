/// FollowedLines: a line file that a recovered run writes once more. What stands there already is
/// compared, not written again; what a run that was cut off had written beyond its record is cut.
///
///   auto lines = FollowedLines::open(file, bytes_before);   // where the recorded start began
///   while (lines->take(line))   ...                          // false: nothing is left to compare
///   lines->cut();                                           // the record has ended
///
/// Owns nothing but a stream for reading. Not thread-safe.
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
  /// True: the next line is there and equal. False: no line is left; append it. kCorrupt: another
  /// line stands there.
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
