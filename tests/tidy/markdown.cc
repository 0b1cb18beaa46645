#include "tests/tidy/markdown.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>

namespace primerl::tidy {

std::vector<SourceFile> documents() {
  auto files = read_tree({"docs", "examples"}, {".md"});
  const std::filesystem::path root(PRIMERL_SOURCE_DIR);
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (entry.path().extension() != ".md") continue;
    std::ifstream stream(entry.path(), std::ios::binary);
    files.push_back(source_from_text(entry.path().filename().string(),
                                     std::string{std::istreambuf_iterator<char>(stream), {}}));
  }
  return files;
}

std::vector<CodeBlock> code_blocks(const SourceFile& document) {
  static const std::regex marked(R"(<!-- (.+) -->)");
  std::vector<CodeBlock> blocks;
  bool inside = false;
  std::string marker;
  for (size_t i = 0; i < document.lines.size(); ++i) {
    const std::string& line = document.lines[i];
    std::smatch match;
    if (inside) {
      if (line == "```")
        inside = false;
      else
        blocks.back().text += line + "\n";
    } else if (line.starts_with("```")) {
      blocks.push_back({document.path, static_cast<int>(i) + 1, line.substr(3), marker, ""});
      inside = true;
      marker.clear();
    } else {
      marker = std::regex_match(line, match, marked) ? std::string(match[1]) : "";
    }
  }
  return blocks;
}

std::vector<Link> file_links(const SourceFile& document) {
  static const std::regex pattern(R"(\]\(([^)\s]+)\))");
  std::vector<Link> links;
  bool inside = false;
  for (size_t i = 0; i < document.lines.size(); ++i) {
    const std::string& line = document.lines[i];
    if (line.starts_with("```")) inside = !inside;
    if (inside) continue;
    for (std::sregex_iterator it(line.begin(), line.end(), pattern), end; it != end; ++it) {
      std::string target = (*it)[1];
      if (target.starts_with("http") || target.starts_with("#")) continue;
      const size_t end_of_target = std::min(target.find('#'), target.size());
      const std::string anchor = target.substr(std::min(end_of_target + 1, target.size()));
      target = target.substr(0, end_of_target);
      links.push_back({document.path, static_cast<int>(i) + 1, target, anchor});
    }
  }
  return links;
}

namespace {

/// "| a | b |": a, b.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  for (size_t at = 1, end = 0; at < line.size(); at = end + 1) {
    end = std::min(line.find('|', at), line.size());
    const std::string cell = line.substr(at, end - at);
    const size_t first = cell.find_first_not_of(' ');
    cells.push_back(first == std::string::npos
                        ? ""
                        : cell.substr(first, cell.find_last_not_of(' ') + 1 - first));
  }
  return cells;
}

}  // namespace

std::vector<std::string> anchors_of(const SourceFile& document) {
  std::vector<std::string> anchors;
  bool in_block = false;
  for (const std::string& line : document.lines) {
    if (line.starts_with("```")) in_block = !in_block;
    const size_t level = line.find_first_not_of('#');
    if (in_block || level == 0 || level == std::string::npos || line[level] != ' ') continue;
    std::string anchor;
    for (const char c : line.substr(level + 1)) {
      if (c == ' ')
        anchor += '-';
      else if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_')
        anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    anchors.push_back(anchor);
  }
  return anchors;
}

std::vector<Table> tables(const SourceFile& document) {
  std::vector<Table> found;
  bool in_block = false, in_table = false;
  for (size_t i = 0; i < document.lines.size(); ++i) {
    const std::string& line = document.lines[i];
    if (line.starts_with("```")) in_block = !in_block;
    if (in_block || !line.starts_with("|")) {
      in_table = false;
    } else if (!in_table) {
      found.push_back({static_cast<int>(i) + 1, cells_of(line), {}});
      in_table = true;
    } else if (!line.starts_with("|---") && !line.starts_with("| ---")) {
      found.back().rows.push_back(cells_of(line));
      found.back().rows.back().resize(found.back().head.size());
    }
  }
  return found;
}

Table table_with_head(const SourceFile& document, const std::string& title) {
  for (auto& table : tables(document))
    if (std::find(table.head.begin(), table.head.end(), title) != table.head.end()) return table;
  ADD_FAILURE() << document.path << " has no table with the column '" << title << "'";
  return {};
}

std::vector<std::string> code_spans(const std::string& text) {
  static const std::regex span("`([^`]+)`");
  std::vector<std::string> spans;
  for (std::sregex_iterator it(text.begin(), text.end(), span), end; it != end; ++it)
    spans.push_back((*it)[1]);
  return spans;
}

}  // namespace primerl::tidy
