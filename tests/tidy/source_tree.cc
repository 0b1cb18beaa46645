#include "tests/tidy/source_tree.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>

namespace primerl::tidy {
namespace {

namespace fs = std::filesystem;

bool ends_with_any(std::string_view text, const std::vector<std::string>& endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [text](const std::string& ending) { return text.ends_with(ending); });
}

/// Walks C++ text and says of every character whether it is code.
class CodeMask {
 public:
  explicit CodeMask(std::string_view text) : text_(text), mask_(text.size(), true) {}

  std::vector<bool> run() {
    while (at_ < text_.size()) {
      if (sees("//")) {
        blank_until("\n");
      } else if (sees("/*")) {
        blank_until("*/");
      } else if (sees("R\"")) {
        raw_string();
      } else if (text_[at_] == '"') {
        literal('"');
      } else if (text_[at_] == '\'' && !is_digit_separator()) {
        literal('\'');
      } else {
        ++at_;
      }
    }
    return std::move(mask_);
  }

 private:
  bool sees(std::string_view what) const { return text_.substr(at_, what.size()) == what; }
  bool is_digit_separator() const {
    return at_ > 0 && std::isalnum(static_cast<unsigned char>(text_[at_ - 1])) != 0;
  }
  void blank_to(size_t end) {
    end = std::min(end, text_.size());
    for (; at_ < end; ++at_)
      if (text_[at_] != '\n') mask_[at_] = false;
  }
  void blank_until(std::string_view end) {
    const size_t found = text_.find(end, at_ + 2);
    blank_to(found == std::string_view::npos ? text_.size() : found + end.size());
  }
  void raw_string() {
    const size_t open = text_.find('(', at_);
    if (open == std::string_view::npos) return blank_to(text_.size());
    const std::string close = ")" + std::string(text_.substr(at_ + 2, open - at_ - 2)) + "\"";
    at_ = open + 1;
    const size_t found = text_.find(close, at_);
    blank_to(found == std::string_view::npos ? text_.size() : found);
    at_ = std::min(at_ + close.size(), text_.size());
  }
  void literal(char quote) {
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote && text_[end] != '\n')
      end += text_[end] == '\\' ? 2 : 1;
    ++at_;
    blank_to(end);
    ++at_;
  }

  std::string_view text_;
  std::vector<bool> mask_;
  size_t at_ = 0;
};

std::string join_lines(const SourceFile& file) {
  std::string text;
  for (const auto& line : file.lines) text += line + "\n";
  return text;
}

}  // namespace

SourceFile source_from_text(std::string path, std::string_view text) {
  SourceFile file{std::move(path), {}};
  while (!text.empty()) {
    const size_t end = text.find('\n');
    file.lines.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return file;
}

std::vector<SourceFile> read_tree(const std::vector<std::string>& folders,
                                  const std::vector<std::string>& endings) {
  const fs::path root(PRIMERL_SOURCE_DIR);
  std::vector<SourceFile> files;
  for (const auto& folder : folders) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string path = fs::relative(entry.path(), root).generic_string();
      if (!entry.is_regular_file() || !ends_with_any(path, endings)) continue;
      std::ifstream stream(entry.path(), std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(stream), {}};
      files.push_back(source_from_text(path, text));
    }
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

const std::vector<SourceFile>& cpp_files() {
  static const std::vector<SourceFile> files =
      read_tree({"graph", "kernels", "actors", "runtime", "tests", "bench", "fuzz", "examples"},
                {".h", ".cc", ".cu", ".cuh"});
  return files;
}

std::vector<Include> includes_of(const SourceFile& file) {
  static const std::regex pattern(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"].*)");
  std::vector<Include> found;
  std::smatch match;
  for (size_t i = 0; i < file.lines.size(); ++i)
    if (std::regex_match(file.lines[i], match, pattern))
      found.push_back({static_cast<int>(i) + 1, match[1] == "\"", match[2]});
  return found;
}

std::vector<std::string> code_of(const SourceFile& file) {
  std::string text = join_lines(file);
  const std::vector<bool> mask = CodeMask(text).run();
  for (size_t i = 0; i < text.size(); ++i)
    if (!mask[i]) text[i] = ' ';
  return source_from_text(file.path, text).lines;
}

bool starts_with_any(std::string_view text, const std::vector<std::string>& beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [text](const std::string& beginning) { return text.starts_with(beginning); });
}

bool matches(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern.front() == '*') {
    for (size_t skip = 0; skip <= text.size(); ++skip)
      if (matches(pattern.substr(1), text.substr(skip))) return true;
    return false;
  }
  return !text.empty() && text.front() == pattern.front() &&
         matches(pattern.substr(1), text.substr(1));
}

}  // namespace primerl::tidy
