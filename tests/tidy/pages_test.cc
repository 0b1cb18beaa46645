// Pages that are made from something else, or that list others: the benchmarks' page, the list of
// pages, the words to replace.
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/store/scratch_folder.h"
#include "tests/tidy/markdown.h"

namespace primerl::tidy {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const fs::path kRoot(PRIMERL_SOURCE_DIR);

struct Outcome {
  int exit_code = 0;
  std::string text;  // stdout and stderr
};

Outcome run(const std::string& command) {
  std::FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  Outcome outcome;
  char part[4096];
  while (std::fgets(part, sizeof part, pipe) != nullptr) outcome.text += part;
  const int status = ::pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return outcome;
}

Outcome run_script(const std::string& name, const std::string& words) {
  return run("'" PRIMERL_PYTHON "' '" + (kRoot / "scripts" / name).string() + "' " + words);
}

void write_file(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

TEST(Words, NoOldWordIsWrittenAgain) {
  const auto outcome = run_script("count_words.py", "--check");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
}

TEST(BenchPage, IsWhatTheResultsSay) {
  const auto outcome = run_script("bench_page.py", "--check");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
}

/// A tree with one result, of one row.
class BenchResults : public ::testing::Test {
 protected:
  void write_result(const std::string& row, const std::string& date = "2026-11-25") {
    write_file(root() / "docs/bench/results/edge.json",
               R"({"part": "Runtime", "title": "Edges", "bench": "edge_bench", "machine": "M",)"
               R"( "date": ")" +
                   date + R"(", "commit": "abc", "rows": [)" + row + "]}");
  }
  Outcome render(const std::string& flag = "") {
    return run_script("bench_page.py", flag + " '" + root().string() + "'");
  }
  std::string page() {
    std::ifstream stream(root() / "docs/bench/README.md");
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  const fs::path& root() const { return scratch_.path(); }

 private:
  const ScratchFolder scratch_;
};

TEST_F(BenchResults, MarkATargetOnePastItAsMissed) {
  const std::string row =
      R"({"name": "n", "unit": "ms", "target": 5, "better": "lower", "value": )";
  write_result(row + "5}");
  ASSERT_EQ(render().exit_code, 0);
  EXPECT_THAT(page(), HasSubstr("| n | 5 ms | 5 |"));
  write_result(row + "6}");
  ASSERT_EQ(render().exit_code, 0);
  EXPECT_THAT(page(), HasSubstr("| n | 6 ms | 5, **missed** |"));
}

TEST_F(BenchResults, CompareWithAPeerBothWays) {
  write_result(R"({"name": "rate", "unit": "k/s", "value": 200, "better": "higher",)"
               R"( "peer": {"name": "P", "value": 100, "target": 3}},)"
               R"({"name": "time", "unit": "ms", "value": 2, "better": "lower",)"
               R"( "peer": {"name": "P", "value": 8, "spread": [7, 9], "target": 4}})");
  ASSERT_EQ(render().exit_code, 0);
  EXPECT_THAT(page(), HasSubstr("| P 100: 2 times (target 3), **missed** |"));
  EXPECT_THAT(page(), HasSubstr("| P 8 [7, 9]: 4 times (target 4) |"));
}

TEST_F(BenchResults, NameTheFileAndTheRowThatIsRefused) {
  const std::vector<std::pair<std::string, std::string>> refused = {
      {R"({"name": "n", "unit": "ms", "value": 1, "target": 5})", "whether higher or lower"},
      {R"({"name": "n", "unit": "ms", "value": "1"})", "a value that is a number"},
      {R"({"name": "n", "unit": "ms", "value": 1, "goal": 2})", "unknown keys: goal"},
      {R"({"name": "n", "unit": "ms", "value": 1, "spread": [3, 2]})", "[least, most]"},
      {R"({"name": "n", "unit": "ms", "value": 1, "better": "more"})", "'higher' or 'lower'"},
      {"", "has no rows"}};
  for (const auto& [row, why] : refused) {
    write_result(row);
    const auto outcome = render();
    EXPECT_EQ(outcome.exit_code, 1) << row;
    EXPECT_THAT(outcome.text, HasSubstr("edge.json: "));
    EXPECT_THAT(outcome.text, HasSubstr(why));
  }
  write_result(R"({"name": "n", "unit": "ms", "value": 1})", "yesterday");
  EXPECT_THAT(render().text, HasSubstr("date is 'yesterday', not like 2026-11-25"));
}

TEST_F(BenchResults, AreCheckedAgainstAPageThatIsNotTheirs) {
  write_result(R"({"name": "n", "unit": "ms", "value": 1})");
  ASSERT_EQ(render().exit_code, 0);
  EXPECT_EQ(render("--check").exit_code, 0);
  write_result(R"({"name": "n", "unit": "ms", "value": 2})");
  const auto outcome = render("--check");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.text, HasSubstr("run scripts/bench_page.py"));
}

// A page that docs/README.md does not name cannot be found from there.
TEST(Pages, AreAllListed) {
  std::set<std::string> listed;
  for (const auto& document : documents())
    if (document.path == "docs/README.md")
      for (const auto& link : file_links(document)) listed.insert(link.target);
  ASSERT_FALSE(listed.empty());
  for (const auto& document : documents()) {
    if (!document.path.starts_with("docs/") || document.path == "docs/README.md") continue;
    EXPECT_TRUE(listed.contains(document.path.substr(5)))
        << "docs/README.md does not list " << document.path;
  }
}

TEST(Pages, AnchorsAreMadeOfHeadings) {
  const auto page = source_from_text(
      "x.md", "# Two *words*\n```\n# no heading\n```\n## `kv_events/A.B.jsonl`: on-line\n#none\n");
  EXPECT_THAT(anchors_of(page), ElementsAre("two-words", "kv_eventsabjsonl-on-line"));
}

// A heading that other pages point to may be renamed only together with them.
TEST(Pages, AnchorsOfLinksAreHeadings) {
  std::map<std::string, std::vector<std::string>> anchors;
  for (const auto& document : documents()) anchors[document.path] = anchors_of(document);
  for (const auto& document : documents())
    for (const auto& link : file_links(document)) {
      if (link.anchor.empty()) continue;
      const fs::path page = (fs::path(link.path).parent_path() / link.target).lexically_normal();
      EXPECT_THAT(anchors[page.string()], Contains(link.anchor))
          << link.path << ":" << link.line << ": " << page << " has no such heading";
    }
}

TEST(WordsToReplace, EachHasAPlainWordASenseAndItsPlaces) {
  const auto pages = documents();
  for (const auto& document : pages) {
    if (document.path != "docs/design/words.md") continue;
    const auto table = table_with_head(document, "Write instead");
    EXPECT_GT(table.rows.size(), 40U);
    for (const auto& row : table.rows) {
      EXPECT_FALSE(code_spans(row[0]).empty()) << row[0];
      EXPECT_TRUE(row[1] == "all" || !code_spans(row[1]).empty()) << row[0] << ": where?";
      for (const auto& folder : code_spans(row[1]))
        EXPECT_TRUE(fs::exists(kRoot / folder)) << row[0] << ": there is no " << folder;
      EXPECT_FALSE(row[2].empty()) << row[0];
      EXPECT_FALSE(row[3].empty()) << row[0];
      EXPECT_EQ(row[4].find_first_not_of("0123456789"), std::string::npos) << row[0];
    }
  }
}

TEST(WordsToReplace, AreCountedByTheScript) {
  if (!fs::exists(kRoot / ".git")) return;  // it counts what git tracks
  const auto outcome = run_script("count_words.py", "");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr(" places ("));
}

}  // namespace
}  // namespace primerl::tidy
