/// Code blocks and links of the project's documents, with the marker line that may stand above a
/// block: `<!-- check -->`, `<!-- run -->`, `<!-- run exit=2 -->`, `<!-- output: command -->`,
/// `<!-- file: path -->`.
#pragma once

#include <string>
#include <vector>

#include "tests/tidy/source_tree.h"

namespace primerl::tidy {

struct CodeBlock {
  std::string path;      // of the document
  int line = 0;          // 1-based, of the opening fence
  std::string language;  // "toml", "sh"; empty = plain
  std::string marker;    // "run exit=2"; empty = none
  std::string text;
};

struct Link {
  std::string path;
  int line = 0;
  std::string target;  // without '#anchor'; only links to files
};

/// Every document of the project: README and its neighbours, docs/ and the examples.
std::vector<SourceFile> documents();
std::vector<CodeBlock> code_blocks(const SourceFile& document);
std::vector<Link> file_links(const SourceFile& document);

}  // namespace primerl::tidy
