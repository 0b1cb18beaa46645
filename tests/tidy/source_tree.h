/// The tree as text: what the tidy tests read. Files come sorted by path, build folders left out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace primerl::tidy {

struct SourceFile {
  std::string path;                // from the root: "graph/base/ids.h"
  std::vector<std::string> lines;  // without line ends
};

/// One `#include` with its 1-based line.
struct Include {
  int line = 0;
  bool quoted = false;
  std::string target;
};

SourceFile source_from_text(std::string path, std::string_view text);

/// Every file below `folders` (relative to the root of the sources) with one of `endings`.
std::vector<SourceFile> read_tree(const std::vector<std::string>& folders,
                                  const std::vector<std::string>& endings);

/// The files that hold C++: rooms, programs, tests and benches.
const std::vector<SourceFile>& cpp_files();

std::vector<Include> includes_of(const SourceFile& file);

/// The same lines with comments and the contents of string literals blanked.
std::vector<std::string> code_of(const SourceFile& file);

bool starts_with_any(std::string_view text, const std::vector<std::string>& beginnings);

/// `*` stands for any run of characters, '/' included.
bool matches(std::string_view pattern, std::string_view text);

}  // namespace primerl::tidy
