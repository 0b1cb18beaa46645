#include "graph/config/short_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "graph/config/built_in_graphs.h"
#include "graph/config/toml_source.h"
#include "tests/graph/test_catalog.h"

namespace primerl::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

std::shared_ptr<const Plan> plan_of(const std::string& text, Overrides overrides = {}) {
  const auto graph = load_text(text, std::move(overrides));
  EXPECT_NE(graph.plan, nullptr) << findings(graph);
  return graph.plan;
}

std::string resolved(const std::string& text, Overrides overrides = {}) {
  std::string resolved = plan_of(text, std::move(overrides))->resolved_toml;
  // The model's folder is a temporary one.
  const size_t begin = resolved.find("[model.policy]\npath = ");
  const size_t end = resolved.find("\n\n", begin);
  return begin == std::string::npos ? resolved : resolved.erase(begin, end - begin);
}

std::string origin_of(const CheckedGraph& graph, const std::string& path) {
  for (const auto& value : graph.resolved)
    if (value.path == path) return value.origin;
  return "no value " + path;
}

TEST(ShortFile, IsThePlanOfItsLongForm) {
  EXPECT_EQ(resolved(short_text()), resolved(demo_text()));
}

TEST(ShortFile, MayNameTheLoopThatIsImplied) {
  EXPECT_EQ(resolved("include = [\"primerl:async_rl\"]\n" + short_text()), resolved(short_text()));
}

TEST(ShortFile, SetsOptionsOfItsNodesAndResources) {
  const auto plan = plan_of(short_text() +
                            "[node.rollout]\nmax_inflight = 32\n"
                            "[resource.engine]\nkv_blocks = 99\n");
  EXPECT_THAT(plan->resolved_toml, HasSubstr("max_inflight = 32\n"));
  EXPECT_THAT(plan->resolved_toml, HasSubstr("kv_blocks = 99\n"));
}

TEST(ShortFile, IsChangedByFlagsAtNodesThatOnlyTheLoopHas) {
  Overrides overrides;
  overrides.sets = {"node.rollout.max_inflight=24", "resource.engine.kv_blocks=77"};
  const auto graph = load_text(short_text(), overrides);
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  EXPECT_EQ(origin_of(graph, "node.rollout.max_inflight"), "--set node.rollout.max_inflight=24");
  EXPECT_EQ(origin_of(graph, "resource.engine.kv_blocks"), "--set resource.engine.kv_blocks=77");
}

TEST(ShortFile, ShowsWhereEachValueComesFrom) {
  const auto graph = load_text(short_text());
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  EXPECT_EQ(origin_of(graph, "node.env.actor"), "primerl:async_rl:9:9");
  EXPECT_EQ(origin_of(graph, "tenant.main.max_steps"), "graph.toml:8:13");
  EXPECT_EQ(origin_of(graph, "resource.learner.optimizer.lr"), "graph.toml:15:20");
  EXPECT_EQ(origin_of(graph, "node.rollout.max_inflight"), "default");
  EXPECT_THAT(origin_of(graph, "edges.forward"), HasSubstr("primerl:async_rl:"));
}

TEST(ShortFile, IsLongOnceAnyOfItsTextsHasEdges) {
  const Folder folder;
  folder.write("edges.toml", "[edges]\nforward = []\n");
  const std::string path = folder.write("graph.toml", short_text());
  Overrides overrides;
  overrides.overlays = {folder.path() + "/edges.toml"};
  EXPECT_THAT(findings(load_graph(path, overrides, test_catalog())),
              HasSubstr("the graph has no nodes"));
  const std::string including =
      folder.write("including.toml", "include = [\"edges.toml\"]\n" + short_text());
  EXPECT_THAT(findings(load_graph(including, {}, test_catalog())),
              HasSubstr("the graph has no nodes"));
}

TEST(ShortFile, MayBeIncludedByALongOne) {
  const Folder folder;
  folder.write("short.toml", short_text());
  const std::string path =
      folder.write("graph.toml",
                   "include = [\"primerl:async_rl\", \"short.toml\"]\n"
                   "[node.counter]\nactor = \"counter\"\n"
                   "[edges]\nforward = [\"rollout.group -> trainer.group\"]\n");
  // The list of the file replaces the loop's forward edges, and its node is a node of the graph.
  EXPECT_THAT(findings(load_graph(path, {}, test_catalog())),
              AllOf(HasSubstr("output 'task' of node 'env' is not connected"),
                    Not(HasSubstr("has no node"))));
}

TEST(ShortFile, CompletesFilesThatIncludeEachOther) {
  const Folder folder;
  folder.write("short.toml", short_text());
  const std::string path =
      folder.write("graph.toml", "include = [\"short.toml\"]\n[node.rollout]\nmax_inflight = 48\n");
  const auto graph = load_graph(path, {}, test_catalog());
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  EXPECT_THAT(graph.plan->resolved_toml, HasSubstr("max_inflight = 48\n"));
}

TEST(ShortFile, NamesAnEngineOfItsOwnInPlaceOfTheLoops) {
  const auto plan = plan_of(short_text() +
                            "[resource.big]\nkind = \"engine\"\n"
                            "[node.prefill]\nengine = \"big\"\n[node.decode]\nengine = \"big\"\n");
  std::vector<std::string> names;
  for (const auto& resource : plan->resources) names.push_back(resource.name);
  EXPECT_THAT(names, UnorderedElementsAre("big", "learner", "weights", "policy"));
}

TEST(ShortFile, IsOneErrorIfAnIncludeIsMissing) {
  const auto graph = load_text("include = [\"missing.toml\"]\n" + short_text());
  EXPECT_EQ(graph.diagnostics.num_errors(), 1u) << findings(graph);
  EXPECT_THAT(findings(graph), HasSubstr("missing.toml' does not exist"));
}

TEST(ShortFile, ReadsAMisspeltEdgesTableAsEdges) {
  const auto graph = load_text(short_text() + "[edgs]\nforward = []\n");
  EXPECT_THAT(findings(graph),
              AllOf(HasSubstr("did you mean 'edges'?"), HasSubstr("the graph has no nodes")));
}

// No user can change a line of a built-in graph, so no finding may point there.
TEST(ShortFile, PointsAtLinesOfTheUser) {
  const std::vector<std::string> faults = {"[node.env]\nactor = \"rollout\"\n",
                                           "[node.router]\nactor = \"counter\"\n",
                                           "[node.broadcaster]\nreplicas = 2\n",
                                           "[node.decode]\nengine = \"weights\"\n",
                                           "[resource.weights]\nkind = \"engine\"\n",
                                           "[resource.engine]\nkind = \"weight_channel\"\n",
                                           "[place]\na = { nodes = [] }\n",
                                           "[tenant.other]\n",
                                           "[node.trainer]\nactor = \"rollout\"\n",
                                           "[node.trainer]\nlearner = \"engine\"\n",
                                           "[resource.engine]\nbackend = \"scripted\"\n"};
  for (const auto& fault : faults) {
    const auto graph = load_text(short_text() + fault);
    EXPECT_GT(graph.diagnostics.num_errors(), 0u) << fault;
    for (const auto& found : graph.diagnostics.all()) {
      EXPECT_FALSE(graph.sources.is_built_in(found.span)) << fault << findings(graph);
      EXPECT_FALSE(found.span.is_none()) << fault << findings(graph);
    }
  }
}

TEST(ShortFile, AcceptsAnotherNameOfAnOption) {
  const std::string old = short_text() + "[node.rollout]\nmax_inflight_requests = 32\n";
  EXPECT_EQ(resolved(old), resolved(short_text() + "[node.rollout]\nmax_inflight = 32\n"));
  // The value that was written last counts, under whichever name.
  Overrides flags;
  flags.sets = {"node.rollout.max_inflight=40"};
  EXPECT_THAT(resolved(old, flags), HasSubstr("max_inflight = 40\n"));
  flags.sets = {"node.rollout.max_inflight=40", "node.rollout.max_inflight_requests=48"};
  EXPECT_THAT(resolved(old, flags), HasSubstr("max_inflight = 48\n"));
  flags.sets.push_back("node.rollout.max_inflight=56");
  EXPECT_THAT(resolved(old, flags), HasSubstr("max_inflight = 56\n"));
  EXPECT_THAT(resolved(old, flags), Not(HasSubstr("max_inflight_requests")));
}

TEST(ShortFile, RefusesBothNamesOfAnOptionInOneText) {
  const auto graph =
      load_text(short_text() + "[node.rollout]\nmax_inflight = 32\nmax_inflight_requests = 64\n");
  EXPECT_EQ(graph.diagnostics.num_errors(), 1u) << findings(graph);
  EXPECT_THAT(findings(graph),
              HasSubstr("'max_inflight_requests' and 'max_inflight' of node 'rollout'"));
}

TEST(BuiltInGraphs, HaveNamesThatAnIncludeFinds) {
  EXPECT_EQ(find_built_in("primerl:async_rl"), &standard_graph());
  EXPECT_NE(find_built_in("primerl:sft"), nullptr);
  EXPECT_EQ(find_built_in("primerl:async_rl.toml"), nullptr);
  EXPECT_TRUE(is_built_in_name("primerl:anything"));
  EXPECT_FALSE(is_built_in_name("./primerl:anything"));
}

TEST(BuiltInGraphs, QuoteALineWithItsTable) {
  const std::string_view text = "[a.b]\nkey = 1\n\n[edges]\nforward = [\n  \"x.y -> z.w\",\n]\n";
  EXPECT_EQ(built_in_line(text, 1), "[a.b]");
  EXPECT_EQ(built_in_line(text, 2), "[a.b] key = 1");
  EXPECT_EQ(built_in_line(text, 6), "[edges] \"x.y -> z.w\"");
}

}  // namespace
}  // namespace primerl::testing
