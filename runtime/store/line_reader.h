/// LineReader: reads the complete lines of a line file, oldest or newest first, while another
/// process may be appending to it. Lines appended after open() are not read; an incomplete last
/// line is ignored.
///
/// Keeps one block and one line in memory, however large the file is. Not thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "graph/base/descriptor.h"
#include "graph/base/result.h"

namespace primerl {

class LineReader {
 public:
  enum class Order { kOldestFirst, kNewestFirst };

  static Result<LineReader> open(const std::filesystem::path& file, Order order);
  /// The next line, without its newline; false after the last. kCorrupt: a line that LineFile does
  /// not write.
  Result<bool> next(std::string& line);

 private:
  LineReader(std::filesystem::path file, Descriptor fd, Order order, uint64_t size);
  Status read_block();
  bool take_line(std::string& line);

  std::filesystem::path file_;
  Descriptor fd_;
  Order order_;
  uint64_t begin_ = 0, end_ = 0;  // range of the bytes that were not read yet
  std::string buffer_;            // bytes that were read but not returned; before or after the
                                  // others
  size_t taken_ = 0;              // bytes of buffer_ that were returned, oldest first
};

}  // namespace primerl
