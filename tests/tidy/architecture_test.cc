// What docs/design/architecture.md says about folders, third parties and the build is what the tree
// has: each table of the page is compared with layers.h, and layers.h with the includes.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tidy/layers.h"
#include "tests/tidy/markdown.h"

namespace primerl::tidy {
namespace {

using ::testing::ElementsAre;

using Names = std::set<std::string>;

constexpr size_t kPageLinesMax = 250;

std::string file_text(const std::string& path) {
  std::ifstream stream(std::string(PRIMERL_SOURCE_DIR) + "/" + path, std::ios::binary);
  EXPECT_TRUE(stream.good()) << path;
  return {std::istreambuf_iterator<char>(stream), {}};
}

SourceFile page(const std::string& path = "docs/design/architecture.md") {
  return source_from_text(path, file_text(path));
}

/// The first number of the page that stands where `pattern` has its group.
int64_t number_on_page(const std::string& pattern) {
  std::smatch match;
  const std::string text = file_text("docs/design/architecture.md");
  const bool found = std::regex_search(text, match, std::regex(pattern));
  EXPECT_TRUE(found) << "architecture.md no longer says: " << pattern;
  return found ? std::stoll(match[1]) : 0;
}

/// Folders without those that lie in another of the list.
Names outermost(const Names& folders) {
  Names kept;
  for (const auto& folder : folders)
    if (std::none_of(folders.begin(), folders.end(), [&](const std::string& other) {
          return other != folder && folder.starts_with(other);
        }))
      kept.insert(folder);
  return kept;
}

/// What layers.h lets `folder` include, itself left out.
Names allowed_by_data(const std::string& folder) {
  for (const auto& layer : layers()) {
    if (layer.folder != folder) continue;
    Names allowed(layer.may_include.begin(), layer.may_include.end());
    allowed = outermost(allowed);
    allowed.erase(folder);
    return allowed;
  }
  ADD_FAILURE() << folder << " is not in tests/tidy/layers.cc";
  return {};
}

Names with_beginning(const std::string& beginning, const std::vector<std::string>& names) {
  Names found;
  for (const auto& name : names) found.insert(beginning + name + "/");
  return found;
}

Names with_beginning(const std::string& beginning, const std::vector<std::string>& names,
                     Names others) {
  others.merge(with_beginning(beginning, names));
  return others;
}

TEST(Tables, ReadTheCodeSpansOfEveryCell) {
  const auto file = source_from_text("x.md",
                                     "| A | B |\n|---|---|\n| `a`, `b` (later) | - |\n\n"
                                     "```\n| A | B |\n```\n| C |\n|---|\n| `x y` |\n");
  const auto all = tables(file);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_THAT(all[0].head, ElementsAre("A", "B"));
  ASSERT_EQ(all[0].rows.size(), 1U);
  EXPECT_THAT(code_spans(all[0].rows[0][0]), ElementsAre("a", "b"));
  EXPECT_TRUE(code_spans(all[0].rows[0][1]).empty());
  EXPECT_THAT(code_spans(all[1].rows[0][0]), ElementsAre("x y"));
}

TEST(Architecture, FitsInItsLength) { EXPECT_LE(page().lines.size(), kPageLinesMax); }

TEST(Architecture, NamesTheFoldersOfTheLanguageAndActors) {
  Names named;
  for (const auto& row : table_with_head(page(), "May include").rows) {
    if (row[0].find("(later)") != std::string::npos) continue;
    const auto folders = code_spans(row[0]);
    Names allowed = with_beginning("", code_spans(row[1]));
    for (const auto& folder : folders) {
      Names others = allowed;
      others.insert(folder + "/");
      others = outermost(others);
      others.erase(folder + "/");
      EXPECT_EQ(others, allowed_by_data(folder + "/")) << folder;
      named.insert(folder + "/");
    }
  }
  for (const auto& layer : layers())
    EXPECT_TRUE(starts_with_any(layer.folder, {"runtime/", "kernels/"}) ||
                named.contains(layer.folder))
        << "architecture.md does not name " << layer.folder;
}

TEST(Architecture, NamesTheFoldersOfTheKernels) {
  Names named;
  const SourceFile kernels = page("docs/design/kernels.md");
  for (const auto& row : table_with_head(kernels, "Folder of `kernels/`").rows) {
    const std::string folder = "kernels/" + code_spans(row[0]).at(0) + "/";
    EXPECT_EQ(with_beginning("kernels/", code_spans(row[2]), {"graph/base/"}),
              allowed_by_data(folder))
        << folder;
    named.insert(folder);
  }
  for (const auto& layer : layers())
    EXPECT_TRUE(!layer.folder.starts_with("kernels/") || named.contains(layer.folder))
        << "kernels.md does not name " << layer.folder;
}

TEST(Architecture, NamesTheFoldersOfTheRuntime) {
  Names named;
  for (const auto& row : table_with_head(page(), "Folder of `runtime/`").rows) {
    const std::string folder = "runtime/" + code_spans(row[0]).at(0) + "/";
    Names allowed = with_beginning("runtime/", code_spans(row[2]),
                                   with_beginning("", code_spans(row[3]), {"graph/"}));
    // A folder inside another one is named by itself: nothing is dropped here.
    for (const auto& layer : layers())
      if (layer.folder == folder) {
        Names data(layer.may_include.begin(), layer.may_include.end());
        data.erase(folder);
        EXPECT_EQ(allowed, data) << folder;
      }
    named.insert(folder);
  }
  for (const auto& layer : layers())
    EXPECT_TRUE(!layer.folder.starts_with("runtime/") || named.contains(layer.folder))
        << "architecture.md does not name " << layer.folder;
}

TEST(Architecture, NamesTheFilesOfEveryThirdParty) {
  std::map<std::string, Names> on_page;
  for (const auto& row : table_with_head(page(), "Files that may include it").rows) {
    const auto files = code_spans(row[1]);
    on_page[row[0]] = Names(files.begin(), files.end());
  }
  std::map<std::string, Names> data;
  for (const auto& fence : fences())
    data[fence.party] = Names(fence.allowed_in.begin(), fence.allowed_in.end());
  EXPECT_EQ(on_page, data);
}

// A table that allows what no file needs says nothing true about the tree.
TEST(Architecture, EveryArrowOfTheRuntimeAndTheKernelsIsUsed) {
  std::map<std::string, Names> used;
  const auto folder_of = [](const std::string& path) {
    std::string best;
    for (const auto& layer : layers())
      if (path.starts_with(layer.folder) && layer.folder.size() > best.size()) best = layer.folder;
    return best;
  };
  for (const auto& file : cpp_files())
    for (const auto& include : includes_of(file))
      if (include.quoted) used[folder_of(file.path)].insert(folder_of(include.target));
  for (const auto& layer : layers()) {
    if (!starts_with_any(layer.folder, {"runtime/", "kernels/"})) continue;
    for (const auto& below : layer.may_include) {
      if (below == layer.folder || starts_with_any(below, {"graph/"})) continue;
      const auto& seen = used[layer.folder];
      EXPECT_TRUE(std::any_of(seen.begin(), seen.end(),
                              [&](const std::string& one) { return one.starts_with(below); }))
          << layer.folder << " includes nothing of " << below
          << ": remove it from layers.cc and from the page";
    }
  }
}

TEST(Architecture, CountsTheFilesThatIncludeLibtorch) {
  int64_t num_files = 0;
  for (const auto& file : cpp_files()) {
    if (!file.path.starts_with("kernels/")) continue;
    const auto includes = includes_of(file);
    num_files += std::any_of(includes.begin(), includes.end(), [](const Include& include) {
      return starts_with_any(include.target, {"torch/", "ATen/", "c10/"});
    });
    for (const auto& include : includes) EXPECT_NE(include.target, "torch/torch.h") << file.path;
  }
  const int64_t most = number_on_page("At most ([0-9]+) files include libtorch headers");
  EXPECT_LE(num_files, most);
  EXPECT_GT(num_files, most - 20) << "architecture.md allows many more than there are";
}

TEST(Architecture, TorchIsIncludedByOneFileOfTheRuntime) {
  Names files;
  for (const auto& file : cpp_files())
    for (const auto& include : includes_of(file))
      if (file.path.starts_with("runtime/") &&
          starts_with_any(include.target,
                          {"kernels/common/", "kernels/cpu/", "kernels/cuda/", "kernels/devices/"}))
        files.insert(file.path);
  EXPECT_EQ(files, Names{"runtime/backends/torch_backends.cc"});
}

/// The presets of CMakePresets.json whose own cache variables have PRIMERL_UNITY.
Names presets_with_unity() {
  Names found;
  std::smatch match;
  std::string name;
  for (const auto& line :
       source_from_text("CMakePresets.json", file_text("CMakePresets.json")).lines) {
    if (std::regex_search(line, match, std::regex(R"x("name": "([a-z]+)")x"))) name = match[1];
    if (line.find(R"("PRIMERL_UNITY": "ON")") != std::string::npos) found.insert(name);
  }
  return found;
}

TEST(Architecture, NamesThePresetsOfUnityBuilds) {
  std::smatch match;
  const std::string text = file_text("docs/design/architecture.md");
  ASSERT_TRUE(std::regex_search(text, match, std::regex("The presets ([^.]*) set `PRIMERL_UNITY`")))
      << "architecture.md no longer says which presets compile several files at a time";
  const auto named = code_spans(match[1]);
  EXPECT_EQ(Names(named.begin(), named.end()), presets_with_unity());
}

}  // namespace
}  // namespace primerl::tidy
