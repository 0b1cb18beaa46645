/// DataRows: the rows of one JSONL or CSV file, as JSON objects.
///
/// JSONL: one object a line; a byte order mark, CRLF and empty lines are skipped. CSV (RFC 4180):
/// the first record names the fields, and every value is a string. The text stays in memory, a row
/// is parsed when it is asked for. Errors name file, line and column (bytes, from 1). A value; a
/// copy shares the text. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/json.h"
#include "graph/base/result.h"

namespace primerl {

struct DataRowLimits {
  int64_t rows_max = 10'000'000;
  int64_t row_bytes_max = int64_t{1} << 20;
};
/// Most bytes of one file.
inline constexpr size_t kDataFileBytesMax = size_t{4} << 30;

class DataRows {
 public:
  /// `format`: "jsonl", "csv", or "auto" for the one that the name ends with.
  static Result<DataRows> read(const std::string& file, std::string_view format,
                               const DataRowLimits& limits);

  size_t size() const { return rows_.size(); }
  /// An object; for CSV all values are strings.
  Result<Json> row(size_t index) const;
  /// An error about `field` of a row, with its position; "" = about the whole row.
  Error fault(size_t index, std::string_view field, const std::string& what) const;

 private:
  struct Span {
    size_t begin = 0, end = 0;
    int64_t line = 0;  // of its first byte, from 1
  };

  Status find_lines(const DataRowLimits& limits);
  Status find_records(const DataRowLimits& limits);
  Status add(Span row, const DataRowLimits& limits);
  Result<Span> next_record(size_t& begin, int64_t& line) const;
  Result<std::vector<std::string>> values_of(const Span& record) const;
  std::string_view text_of(const Span& row) const {
    return std::string_view(*text_).substr(row.begin, row.end - row.begin);
  }

  std::string file_;
  std::shared_ptr<const std::string> text_;
  bool is_csv_ = false;
  std::vector<std::string> names_;  // of a CSV file
  std::vector<Span> rows_;
};

}  // namespace primerl
