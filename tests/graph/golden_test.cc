#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "graph/check/codes.h"
#include "tests/graph/test_catalog.h"

namespace primerl::testing {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = PRIMERL_SOURCE_DIR;
const fs::path kGolden = kSource / "tests/graph/golden";
const fs::path kRehearsed = kSource / "tests/rehearsal/golden";  // checked by rehearsal_test

std::string read(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

bool updates_golden() { return std::getenv("PRIMERL_UPDATE_GOLDEN") != nullptr; }

std::vector<fs::path> golden_graphs(const fs::path& folder) {
  std::vector<fs::path> graphs;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".toml") graphs.push_back(entry.path());
  std::sort(graphs.begin(), graphs.end());
  return graphs;
}

/// The flags of a first line `#! --set a=b --set c=d`.
Overrides flags_of(const std::string& text) {
  Overrides overrides;
  overrides.cores = 2;
  if (text.rfind("#!", 0) != 0) return overrides;
  std::istringstream words(text.substr(2, text.find('\n') - 2));
  std::string word;
  while (words >> word)
    if (word != "--set") overrides.sets.push_back(word);
  return overrides;
}

/// The findings as a person sees them, without the temporary folder's name.
std::string findings_of(const fs::path& graph) {
  const Folder folder;
  const std::string text = read(graph);
  const std::string path = folder.write(graph.filename().string(), text);
  std::string seen = findings(load_graph(path, flags_of(text), test_catalog()));
  for (size_t at = seen.find(folder.path()); at != std::string::npos;
       at = seen.find(folder.path(), at))
    seen.erase(at, folder.path().size() + (seen[at + folder.path().size()] == '/' ? 1 : 0));
  return seen;
}

TEST(Golden, EveryFaultReadsAsWritten) {
  for (const auto& graph : golden_graphs(kGolden)) {
    const std::string seen = findings_of(graph);
    fs::path expected = graph;
    expected.replace_extension(".txt");
    if (updates_golden()) std::ofstream(expected) << seen;
    EXPECT_EQ(seen, read(expected)) << graph.filename();
    const std::string code = graph.filename().string().substr(0, 4);
    EXPECT_NE(seen.find("[" + code + "]"), std::string::npos)
        << graph.filename() << " does not show " << code;
  }
}

TEST(Golden, EveryCodeHasAnExampleAndAParagraph) {
  std::set<std::string> shown;
  for (const auto& folder : {kGolden, kRehearsed})
    for (const auto& graph : golden_graphs(folder))
      shown.insert(graph.filename().string().substr(0, 4));
  std::set<std::string> explained;
  for (const auto& code : error_codes()) {
    EXPECT_FALSE(code.title.empty()) << code.code;
    EXPECT_GT(code.text.size(), 30u) << code.code;
    explained.insert(std::string(code.code));
  }
  EXPECT_EQ(explained.size(), error_codes().size()) << "a code stands twice in the table";
  EXPECT_EQ(shown, explained);
}

// Without a paragraph for its code, `explain` would have no answer.
TEST(Golden, EveryCodeInTheSourcesIsInTheTable) {
  size_t num_found = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kSource / "graph")) {
    if (entry.path().extension() != ".cc" || entry.path().filename() == "codes.cc") continue;
    const std::string text = read(entry.path());
    for (size_t at = text.find("\"G0"); at != std::string::npos; at = text.find("\"G0", at + 1)) {
      if (text.substr(at + 5, 1) != "\"") continue;
      ++num_found;
      EXPECT_NE(find_error_code(text.substr(at + 1, 4)), nullptr)
          << text.substr(at, 6) << " in " << entry.path();
    }
  }
  EXPECT_GT(num_found, 40u);
}

TEST(Golden, TheErrorsPageIsTheTable) {
  const fs::path page = kSource / "docs/errors.md";
  if (updates_golden()) std::ofstream(page) << errors_markdown();
  EXPECT_EQ(read(page), errors_markdown())
      << "write it again with PRIMERL_UPDATE_GOLDEN=1 language_test";
}

TEST(ErrorCodes, AreFoundHoweverTheyAreTyped) {
  ASSERT_NE(find_error_code("G012"), nullptr);
  EXPECT_EQ(find_error_code("g012"), find_error_code("G012"));
  EXPECT_EQ(find_error_code("12"), find_error_code("G012"));
  EXPECT_EQ(find_error_code("G999"), nullptr);
  EXPECT_EQ(find_error_code(""), nullptr);
  EXPECT_NE(explain(*find_error_code("G012")).find("G012: unknown port"), std::string::npos);
}

TEST(ErrorCodes, AreExplainedInLinesOfATerminal) {
  for (const auto& code : error_codes()) {
    std::istringstream lines(explain(code));
    std::string line, words;
    while (std::getline(lines, line)) {
      EXPECT_LE(line.size(), 80u) << line;
      words += line + " ";
    }
    EXPECT_NE(words.find(code.text), std::string::npos) << "a word of " << code.code << " is lost";
  }
}

}  // namespace
}  // namespace primerl::testing
