// Every file of the runtime has a test file of its name beside it, or is in subjects.txt, which
// says where it is tested.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/tidy/source_tree.h"

namespace primerl::tidy {
namespace {

namespace fs = std::filesystem;

bool is_in_tree(const std::string& path) { return fs::exists(fs::path(PRIMERL_SOURCE_DIR) / path); }

/// "runtime/trace/read/index.cc": tests/trace/index_test.cc or tests/trace/read/index_test.cc.
bool has_own_test(const std::string& path) {
  const fs::path inside = fs::path(path).lexically_relative("runtime");
  const std::string name = inside.stem().string() + "_test.cc";
  return is_in_tree((fs::path("tests") / *inside.begin() / name).string()) ||
         is_in_tree((fs::path("tests") / inside.parent_path() / name).string());
}

struct Line {
  std::string pattern;
  std::vector<std::string> tests;
};

std::vector<Line> lines_of_list() {
  std::ifstream file(fs::path(PRIMERL_SOURCE_DIR) / "tests/tidy/subjects.txt");
  std::vector<Line> lines;
  for (std::string text; std::getline(file, text);) {
    std::istringstream words(text.substr(0, text.find('#')));
    Line line;
    if (!(words >> line.pattern)) continue;
    for (std::string test; words >> test;) line.tests.push_back(test);
    lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<std::string> files_without_own_test() {
  std::vector<std::string> files;
  for (const auto& file : read_tree({"runtime"}, {".cc"}))
    if (!has_own_test(file.path)) files.push_back(file.path);
  return files;
}

/// Otherwise its tests never run, and nobody sees it.
TEST(Subjects, EveryTestFileIsInAProgram) {
  const fs::path root(PRIMERL_SOURCE_DIR);
  std::string lists;
  std::set<fs::path> whole;  // folders whose list takes all files
  for (const auto& entry : fs::recursive_directory_iterator(root / "tests")) {
    if (entry.path().filename() != "CMakeLists.txt") continue;
    std::ifstream file(entry.path());
    const std::string list(std::istreambuf_iterator<char>(file), {});
    if (list.find("GLOB") != std::string::npos) whole.insert(entry.path().parent_path());
    lists += list;
  }
  for (const auto& file : read_tree({"tests"}, {".cc"})) {
    const fs::path path = root / file.path;
    const std::string name = path.stem().string();
    if (!name.ends_with("_test") || whole.contains(path.parent_path())) continue;
    EXPECT_NE(lists.find(name), std::string::npos)
        << file.path << ": add it to the CMakeLists.txt beside it";
  }
}

TEST(Subjects, EveryFileHasATestOfItsNameOrSaysWhereItIsTested) {
  const auto lines = lines_of_list();
  for (const auto& path : files_without_own_test()) {
    bool is_listed = false;
    for (const Line& line : lines) is_listed = is_listed || matches(line.pattern, path);
    EXPECT_TRUE(is_listed) << path << ": write " << fs::path(path).stem().string()
                           << "_test.cc, or say in tests/tidy/subjects.txt where it is tested";
  }
}

TEST(Subjects, NoLineOfTheListIsIdleAndItsTestsExist) {
  const auto files = files_without_own_test();
  EXPECT_GT(files.size(), 10U) << "the tree was not read";
  for (const Line& line : lines_of_list()) {
    bool is_used = false;
    for (const auto& path : files) is_used = is_used || matches(line.pattern, path);
    EXPECT_TRUE(is_used) << line.pattern << " names no file without a test of its own";
    EXPECT_FALSE(line.tests.empty()) << line.pattern;
    for (const auto& test : line.tests) EXPECT_TRUE(is_in_tree(test)) << test;
  }
}

}  // namespace
}  // namespace primerl::tidy
