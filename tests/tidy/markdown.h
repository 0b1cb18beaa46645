/// Code blocks, tables and links of the project's documents, with the marker line that may stand
/// above a block: `<!-- check -->`, `<!-- output: command -->`, and those of page_script.h.
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
  std::string anchor;  // empty: none
};

/// A table: its cells without the blanks around them.
struct Table {
  int line = 0;  // 1-based, of the head
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;  // as many cells as the head has
};

/// Every document of the project: README and its neighbours, docs/ and the examples.
std::vector<SourceFile> documents();
std::vector<CodeBlock> code_blocks(const SourceFile& document);
std::vector<Link> file_links(const SourceFile& document);
/// The anchors of the document's headings, as GitHub names them: "## The rehearsal" is
/// "the-rehearsal".
std::vector<std::string> anchors_of(const SourceFile& document);
std::vector<Table> tables(const SourceFile& document);
/// The table of which a column has this title; a failure of the test, and an empty one, if none
/// has.
Table table_with_head(const SourceFile& document, const std::string& title);
/// What stands between back quotes, in order.
std::vector<std::string> code_spans(const std::string& text);

}  // namespace primerl::tidy
