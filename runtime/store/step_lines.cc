#include "runtime/store/step_lines.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string_view>

#include "graph/base/files.h"
#include "graph/base/json.h"
#include "runtime/store/run_folder.h"

namespace primerl {
namespace {

constexpr std::string_view kEnding = ".steps.jsonl";

std::string text_of(const StepLine& line) {
  Json values = Json::object();
  for (const auto& [name, value] : line.values) values.set(name, value);
  return Json::object()
      .set("step", line.step)
      .set("tenant", line.tenant)
      .set("at", line.wall_seconds)
      .set("values", std::move(values))
      .dump();
}

Result<StepLine> line_of(const std::string& text, const std::string& file) {
  ASSIGN_OR_RETURN(const Json json, parse_json(text, file));
  StepLine line;
  ASSIGN_OR_RETURN(line.step, json.get_int("step"));
  ASSIGN_OR_RETURN(line.tenant, json.get_string("tenant"));
  const Json* at = json.find("at");
  const Json* values = json.find("values");
  if (at == nullptr || !at->is_number() || values == nullptr || !values->is_object())
    return error(Code::kCorrupt, "no 'at' or no 'values'");
  line.wall_seconds = at->as_double();
  // JSON has no NaN, so NaN is written as null.
  for (const auto& [name, value] : values->as_object())
    line.values.emplace_back(name, value.is_number() ? value.as_double() : std::nan(""));
  return line;
}

}  // namespace

std::filesystem::path step_lines_file(const std::filesystem::path& logs_folder,
                                      const std::string& process) {
  return logs_folder / (folder_name(process) + std::string(kEnding));
}

std::vector<std::filesystem::path> find_step_lines(const std::filesystem::path& logs_folder) {
  std::vector<std::filesystem::path> files;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(logs_folder, none))
    if (entry.path().filename().string().ends_with(kEnding)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

Status StepWriter::append(const StepLine& line) {
  const std::string text = text_of(line);
  const std::lock_guard lock(mutex_);
  if (!fault_.ok()) return fault_;
  if (lines_ == nullptr) {
    auto opened = LineFile::open(file_);
    if (!opened.ok()) return fault_ = opened.error();
    lines_ = std::move(opened).value();
  }
  return fault_ = lines_->append(text);
}

Result<std::vector<StepLine>> StepReader::take() {
  std::vector<StepLine> lines;
  // Opened at each call, because on a shared file system only opening shows new data.
  std::ifstream stream(file_, std::ios::binary);
  if (!stream) return lines;
  stream.seekg(static_cast<std::streamoff>(num_taken_));
  std::string text;
  for (size_t num_read = 0; num_read < kReadBytes && std::getline(stream, text);) {
    if (stream.eof()) break;  // the line is still being written
    auto line = line_of(text, file_.string());
    if (!line.ok())
      return error(Code::kCorrupt, "'{}' holds a line that is no step: {}", file_.string(),
                   line.error().message());
    lines.push_back(std::move(line).value());
    num_read += text.size() + 1;
    num_taken_ += text.size() + 1;
  }
  return lines;
}

void StepReader::remove() {
  std::error_code ignored;  // a remaining file is read again; its steps are already known
  std::filesystem::remove(file_, ignored);
  num_taken_ = 0;
}

}  // namespace primerl
