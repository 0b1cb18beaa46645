// `[graph] plugins`: which files are loaded, from which folder, how many, and what a plan keeps of
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/graph/test_catalog.h"

namespace primerl::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

const std::string kEnvironment = "environment = { name = \"reverse_text\" }";

std::string with_plugins(const std::string& plugins, const std::string& environment = "echo") {
  return replaced(replaced(demo_text(), "seed = 17", "seed = 17\n" + plugins), kEnvironment,
                  "environment = { name = \"" + environment + "\" }");
}

TEST(PluginList, AddsItsPartsToThePlansOwnCatalog) {
  const auto graph = load_text(with_plugins("plugins = [\"echo.so\"]"));
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  const Catalog& catalog = *graph.plan->catalog;
  EXPECT_EQ(catalog.environments.size(), test_catalog().environments.size() + 1);
  EXPECT_EQ(graph.plan->tenants[0].environment.contract, &catalog.environments.back());
  ASSERT_EQ(catalog.plugins.size(), 1U);
  EXPECT_EQ(fs::path(catalog.plugins[0].file).filename(), "echo.so");
}

TEST(PluginList, IsRelativeToTheFileThatItStandsIn) {
  const Folder folder;
  fs::create_directory(folder.path() + "/shared");
  folder.write("shared/base.toml", "[graph]\nplugins = [\"lib/echo.so\"]\n");
  const std::string path =
      folder.write("graph.toml", "include = [\"shared/base.toml\"]\n" + with_plugins(""));
  Overrides overrides;
  overrides.cores = 2;
  const auto graph = load_graph(path, overrides, test_catalog());
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  EXPECT_THAT(graph.plan->settings.plugins, ElementsAre(folder.path() + "/shared/lib/echo.so"));
}

TEST(PluginList, HasAbsolutePathsInTheResolvedText) {
  const Folder folder;
  Overrides overrides;
  overrides.cores = 2;
  const auto graph = load_graph_text(with_plugins("plugins = [\"echo.so\"]"), "graph.toml",
                                     folder.path(), overrides, test_catalog());
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  EXPECT_THAT(graph.plan->resolved_toml,
              HasSubstr("plugins = [\"" + folder.path() + "/echo.so\"]"));
  const auto again =
      load_graph_text(graph.plan->resolved_toml, "again", "/", overrides, test_catalog());
  ASSERT_NE(again.plan, nullptr) << findings(again);
  EXPECT_EQ(again.plan->graph_hash, graph.plan->graph_hash);
}

TEST(PluginList, WithAMissingPluginIsTheOnlyFinding) {
  const auto found = findings(load_text(with_plugins("plugins = [\"gone.so\"]", "whatever")));
  EXPECT_THAT(found, AllOf(HasSubstr("error[G088]: plugin 'gone.so' cannot be used"),
                           Not(HasSubstr("G015"))));
}

TEST(PluginList, UnderAMisspeltKeyIsOneFinding) {
  const auto found = findings(load_text(with_plugins("plugin = [\"echo.so\"]")));
  EXPECT_THAT(found, AllOf(HasSubstr("did you mean 'plugins'?"), Not(HasSubstr("G015"))));
}

TEST(PluginList, ThatIsNotAListOfStringsIsReported) {
  EXPECT_THAT(findings(load_text(with_plugins("plugins = 3", "reverse_text"))), HasSubstr("G021"));
  EXPECT_THAT(findings(load_text(with_plugins("plugins = [3]", "reverse_text"))),
              HasSubstr("G021"));
}

TEST(PluginList, MayHaveSixtyFourEntriesAndNotOneMore) {
  const auto of = [](size_t count) {
    std::string list;
    for (size_t i = 0; i < count; ++i) list += "\"echo.so\", ";
    return findings(load_text(with_plugins("plugins = [" + list + "]")));
  };
  EXPECT_EQ(of(kPluginsMax), "");
  EXPECT_THAT(of(kPluginsMax + 1), HasSubstr("'plugins' must be from 0 to 64 plugins"));
}

TEST(PluginList, IsRefusedByAProgramWithoutPlugins) {
  Catalog catalog = test_catalog();
  catalog.add_plugins = nullptr;
  const Folder folder;
  const auto graph = load_graph_text(with_plugins("plugins = [\"echo.so\"]"), "graph.toml",
                                     folder.path(), {}, catalog);
  EXPECT_EQ(graph.plan, nullptr);
  EXPECT_THAT(findings(graph), HasSubstr("this program does not load plugins"));
}

}  // namespace
}  // namespace primerl::testing
