#include "actors/env/environments/data_rows.h"

#include <algorithm>

#include "graph/base/files.h"
#include "kernels/text/unicode.h"

namespace primerl {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// The message of parse_json() begins with ":1:COLUMN: "; the line of the file replaces the 1.
Error at_line(const Error& fault, const std::string& file, int64_t line) {
  constexpr std::string_view kFirstLine = ":1:";
  std::string_view message = fault.message();
  if (message.starts_with(kFirstLine))
    return error(Code::kInvalid, "{}:{}:{}", file, line, message.substr(kFirstLine.size()));
  if (message.starts_with(": ")) message.remove_prefix(2);
  return error(Code::kInvalid, "{}:{}:1: {}", file, line, message);
}

/// A binary table is named as such, whatever `format` says.
Status refuse_binary(const std::string& file) {
  std::string_view begin;
  const auto mapped = map_file(file);
  if (mapped.ok())
    begin = {reinterpret_cast<const char*>(mapped->bytes.data()), mapped->bytes.size()};
  const bool is_parquet = begin.starts_with("PAR1") || file.ends_with(".parquet");
  const bool is_arrow =
      begin.starts_with("ARROW1") || file.ends_with(".arrow") || file.ends_with(".feather");
  if (!is_parquet && !is_arrow) return ok();
  return error(Code::kInvalid, "'{}' is {} file, which is not read", file,
               is_parquet ? "a Parquet" : "an Arrow")
      .note(fmt::format("make JSONL of it: primerl-graph data convert {}", file));
}

}  // namespace

Result<DataRows> DataRows::read(const std::string& file, std::string_view format,
                                const DataRowLimits& limits) {
  DataRows rows;
  rows.file_ = file;
  RETURN_IF_ERROR(refuse_binary(file));
  if (format == "auto") {
    rows.is_csv_ = file.ends_with(".csv");
    if (!rows.is_csv_ && !file.ends_with(".jsonl") && !file.ends_with(".json"))
      return error(Code::kInvalid, "the name '{}' ends with neither .jsonl nor .csv", file)
          .note("write format = \"jsonl\" or \"csv\"");
  } else {
    rows.is_csv_ = format == "csv";
  }
  ASSIGN_OR_RETURN(std::string text, read_text_file(file, kDataFileBytesMax));
  rows.text_ = std::make_shared<const std::string>(std::move(text));
  RETURN_IF_ERROR(rows.is_csv_ ? rows.find_records(limits) : rows.find_lines(limits));
  if (rows.rows_.empty()) return error(Code::kInvalid, "'{}' has no rows", file);
  return rows;
}

Status DataRows::add(Span row, const DataRowLimits& limits) {
  if (std::cmp_greater(row.end - row.begin, limits.row_bytes_max))
    return error(Code::kExhausted, "{}:{}:1: the row has {} bytes, row_bytes_max is {}", file_,
                 row.line, row.end - row.begin, limits.row_bytes_max);
  if (std::cmp_equal(rows_.size(), limits.rows_max))
    return error(Code::kExhausted, "{}:{}:1: more than {} rows", file_, row.line, limits.rows_max)
        .note("raise 'rows_max'");
  rows_.push_back(row);
  return ok();
}

Status DataRows::find_lines(const DataRowLimits& limits) {
  const std::string& text = *text_;
  size_t begin = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  for (int64_t line = 1; begin < text.size(); ++line) {
    const size_t newline = std::min(text.find('\n', begin), text.size());
    size_t end = newline;
    if (end > begin && text[end - 1] == '\r') --end;
    if (text.find_first_not_of(" \t", begin) < end)
      RETURN_IF_ERROR(add({begin, end, line}, limits));
    begin = newline + 1;
  }
  return ok();
}

/// The next record that is not empty; its end is before the line end. An empty span at the end.
Result<DataRows::Span> DataRows::next_record(size_t& begin, int64_t& line) const {
  const std::string& text = *text_;
  while (begin < text.size() && (text[begin] == '\n' || text[begin] == '\r')) {
    line += text[begin] == '\n' ? 1 : 0;
    ++begin;
  }
  Span record{begin, begin, line};
  bool is_quoted = false;
  size_t at = begin;
  for (; at < text.size(); ++at) {
    if (text[at] == '"') is_quoted = !is_quoted;
    if (text[at] != '\n') continue;
    ++line;
    if (!is_quoted) break;
  }
  if (is_quoted)
    return error(Code::kInvalid, "{}:{}:1: a quote of this record is never closed", file_,
                 record.line);
  record.end = at;
  if (record.end > record.begin && text[record.end - 1] == '\r') --record.end;
  begin = std::min(at + 1, text.size());
  return record;
}

Status DataRows::find_records(const DataRowLimits& limits) {
  size_t begin = text_->starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  int64_t line = 1;
  ASSIGN_OR_RETURN(const Span header, next_record(begin, line));
  ASSIGN_OR_RETURN(names_, values_of(header));
  for (size_t i = 0; i < names_.size(); ++i)
    if (names_[i].empty() || std::find(names_.begin(), names_.begin() + static_cast<int>(i),
                                       names_[i]) != names_.begin() + static_cast<int>(i))
      return error(Code::kInvalid, "{}:{}:1: field {} of the header is '{}', which is {}", file_,
                   header.line, i + 1, names_[i], names_[i].empty() ? "empty" : "there twice");
  while (begin < text_->size()) {
    ASSIGN_OR_RETURN(const Span record, next_record(begin, line));
    if (record.begin < record.end) RETURN_IF_ERROR(add(record, limits));
  }
  return ok();
}

Result<std::vector<std::string>> DataRows::values_of(const Span& record) const {
  const std::string_view text = text_of(record);
  std::vector<std::string> values(1);
  const auto refuse = [&](size_t at, std::string_view what) {
    return error(Code::kInvalid, "{}:{}:{}: {}", file_, record.line, at + 1, what);
  };
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == ',') {
      values.emplace_back();
    } else if (text[at] != '"') {
      values.back().push_back(text[at]);
    } else if (!values.back().empty()) {
      return refuse(at, "a quote inside a value that is not quoted");
    } else {
      for (++at; at < text.size(); ++at) {
        if (text[at] == '"' && (at + 1 == text.size() || text[at + 1] != '"')) break;
        if (text[at] == '"') ++at;
        values.back().push_back(text[at]);
      }
      if (at + 1 < text.size() && text[at + 1] != ',')
        return refuse(at + 1, "text after the closing quote of a value");
    }
  }
  return values;
}

Result<Json> DataRows::row(size_t index) const {
  const Span& span = rows_[index];
  if (!is_csv_) {
    auto json = parse_json(text_of(span), "");
    if (!json.ok()) return at_line(json.error(), file_, span.line);
    if (!json->is_object())
      return error(Code::kInvalid, "{}:{}:1: the row is {}, not an object", file_, span.line,
                   json->kind());
    return json;
  }
  ASSIGN_OR_RETURN(auto values, values_of(span));
  if (values.size() != names_.size())
    return error(Code::kInvalid, "{}:{}:1: the record has {} values, the header has {}", file_,
                 span.line, values.size(), names_.size());
  Json json = Json::object();
  for (size_t i = 0; i < names_.size(); ++i) {
    if (const Status valid = check_utf8(values[i]); !valid.ok())
      return fault(index, names_[i], valid.error().message());
    json.as_object().emplace_back(names_[i], std::move(values[i]));
  }
  return json;
}

Error DataRows::fault(size_t index, std::string_view field, const std::string& what) const {
  const Span& span = rows_[index];
  size_t column = 1;
  if (!is_csv_ && !field.empty()) {
    const size_t key = text_of(span).find(fmt::format("\"{}\"", field));
    if (key != std::string_view::npos) column = key + 1;
  }
  return error(Code::kInvalid, "{}:{}:{}: {}", file_, span.line, column, what);
}

}  // namespace primerl
