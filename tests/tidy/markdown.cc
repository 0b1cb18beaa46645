#include "tests/tidy/markdown.h"

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
      target = target.substr(0, target.find('#'));
      links.push_back({document.path, static_cast<int>(i) + 1, target});
    }
  }
  return links;
}

}  // namespace primerl::tidy
