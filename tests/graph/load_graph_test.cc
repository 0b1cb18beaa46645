#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "graph/base/random.h"
#include "tests/graph/test_catalog.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> names_of_nodes(const Plan& plan) {
  std::vector<std::string> names;
  for (const auto& node : plan.nodes) names.push_back(node.name);
  return names;
}

const PlanEdge& edge_named(const Plan& plan, const std::string& name) {
  for (const auto& edge : plan.edges)
    if (edge.name == name) return edge;
  CHECK(false, "no such edge");
  return plan.edges.front();
}

TEST(LoadGraph, MakesAPlanOfTheDemo) {
  const auto graph = load_text(demo_text());
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  EXPECT_EQ(findings(graph), "");
  const Plan& plan = *graph.plan;
  EXPECT_THAT(names_of_nodes(plan), ElementsAre("env", "rollout", "router", "prefill", "decode",
                                                "trainer", "broadcaster"));
  EXPECT_EQ(plan.instances[0].name, "env.main");
  EXPECT_EQ(plan.instances[2].name, "router");
  ASSERT_EQ(plan.processes.size(), 1u);
  EXPECT_EQ(plan.processes[0].name, "main");
  EXPECT_EQ(plan.tenants[0].batch_size, 64);
  EXPECT_EQ(plan.tenants[0].environment.name, "reverse_text");
  EXPECT_EQ(plan.edges.size(), 22u);
}

TEST(LoadGraph, PutsTheUsersOfAnEngineIntoOneGroup) {
  const auto graph = load_text(demo_text());
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  std::vector<std::string> groups;
  for (const auto& group : graph.plan->groups)
    groups.push_back(group.name + (group.own_thread ? " (own thread)" : ""));
  EXPECT_THAT(groups,
              ElementsAre("env.main (own thread)", "rollout.main", "router",
                          "prefill+decode (own thread)", "trainer (own thread)", "broadcaster"));
}

TEST(LoadGraph, SharesCoresAmongComputeResourcesAndResolvesNames) {
  const auto graph = load_text(demo_text());
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  std::vector<std::string> resources;
  for (const auto& resource : graph.plan->resources)
    resources.push_back(fmt::format("{} {} {} {}", resource.name, resource.kind, resource.backend,
                                    resource.threads));
  EXPECT_THAT(resources, ElementsAre("engine engine torch 1", "learner learner torch 1",
                                     "weights weight_channel memory 1", "policy tokenizer  1"));
}

TEST(LoadGraph, BoundsEveryEdge) {
  const auto graph = load_text(demo_text());
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  const Plan& plan = *graph.plan;
  // capacity 64 + burst 8 - 1 + (64 completions + 16 ended + 64 observations + 1 policy + 1 timer)
  // times a burst of 8.
  EXPECT_EQ(edge_named(plan, "rollout.generate -> router.generate").bound, 64 + 8 - 1 + 146 * 8);
  // capacity 64 + 64 actions + 1 task of a work call.
  EXPECT_EQ(edge_named(plan, "env.task -> rollout.task").bound, 64 + 64 + 1);
  EXPECT_EQ(edge_named(plan, "decode.completion -> rollout.completion").bound, 64);
  EXPECT_EQ(edge_named(plan, "prefill.load -> router.load").bound, 1);
  EXPECT_TRUE(edge_named(plan, "prefill.load -> router.load").latest_wins);
}

TEST(LoadGraph, StoresThePayloadsOfRecordedOutputsUnlessAnEdgeSaysOtherwise) {
  std::string text = demo_text();
  text = replaced(text, "\"rollout.generate    -> router.generate\"",
                  "{ path = \"rollout.generate -> router.generate\", record = \"payload\" }");
  text = replaced(text, "\"prefill.load        -> router.load\"",
                  "{ path = \"prefill.load -> router.load\", record = \"header\" }");
  text = replaced(text, "\"broadcaster.live    -> rollout.policy\"",
                  "{ path = \"broadcaster.live -> rollout.policy\", record = \"none\" }");
  const auto graph = load_text(text);
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  const auto record = [&graph](const std::string& name) {
    return to_string(edge_named(*graph.plan, name).record);
  };
  EXPECT_EQ(record("env.task -> rollout.task"), "payload");
  EXPECT_EQ(record("decode.load -> router.load"), "payload");
  EXPECT_EQ(record("router.prefill -> prefill.request"), "header");
  EXPECT_EQ(record("rollout.generate -> router.generate"), "payload");
  EXPECT_EQ(record("prefill.load -> router.load"), "header");
  EXPECT_EQ(record("broadcaster.live -> rollout.policy"), "none");
}

TEST(LoadGraph, RecordsByDefault) {
  const auto graph = load_text(demo_text());
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  EXPECT_TRUE(graph.plan->trace.is_on());
  EXPECT_EQ(graph.plan->trace.level, "process");
  EXPECT_EQ(graph.plan->trace.full, "block");
  Overrides overrides;
  overrides.sets = {"trace.level=off", "trace.sync_every=\"20ms\"", "trace.pack=false"};
  const auto silent = load_text(demo_text(), overrides);
  ASSERT_NE(silent.plan, nullptr) << findings(silent);
  EXPECT_FALSE(silent.plan->trace.is_on());
  EXPECT_EQ(silent.plan->trace.sync_every, Duration::milliseconds(20));
  EXPECT_FALSE(silent.plan->trace.pack);
}

TEST(LoadGraph, HasBoundsOfAlarms) {
  Overrides overrides;
  overrides.sets = {"graph.alarms.effective_size=0.3", "graph.alarms.all_filtered=0"};
  const auto graph = load_text(demo_text() + "[graph.alarms]\nwindow = 20\n", overrides);
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  const AlarmSettings& alarms = graph.plan->settings.alarms;
  EXPECT_EQ(alarms.window, 20);
  EXPECT_EQ(alarms.effective_size, 0.3);
  EXPECT_EQ(alarms.all_filtered, 0);
  EXPECT_EQ(alarms.mismatch_kl, 0.1) << "the default";
  for (const char* wrong : {"window = 0", "window = 1001", "entropy_collapse = 1.0",
                            "effective_size = 1.0", "mismatch_kl = -0.1", "windows = 3"})
    EXPECT_EQ(load_text(demo_text() + "[graph.alarms]\n" + wrong + "\n").plan, nullptr) << wrong;
}

TEST(LoadGraph, ReadsItsOwnResolvedTextBackToTheSamePlan) {
  const Folder folder;
  Overrides overrides;
  overrides.cores = 2;
  const auto first =
      load_graph_text(demo_text(), "graph.toml", folder.path(), overrides, test_catalog());
  ASSERT_NE(first.plan, nullptr) << findings(first);
  overrides.cores = 64;  // the resolved text has the values that this machine decided
  const auto second = load_graph_text(first.plan->resolved_toml, "graph.resolved.toml", "/",
                                      overrides, test_catalog());
  ASSERT_NE(second.plan, nullptr) << findings(second);
  EXPECT_EQ(second.plan->resolved_toml, first.plan->resolved_toml);
  EXPECT_EQ(second.plan->graph_hash, first.plan->graph_hash);
}

TEST(LoadGraph, SizesKeepTheirValueInTheResolvedText) {
  const std::string text =
      replaced(replaced(demo_text(), "seed = 17", "seed = 17\nmemory_max = \"1.5GB\""),
               "capacity = 64", "capacity = 64, bytes_max = \"1MiB\"");
  const Folder folder;
  const auto load = [&folder](const std::string& graph) {
    return load_graph_text(graph, "graph.toml", folder.path(), {}, test_catalog());
  };
  const auto first = load(text);
  ASSERT_NE(first.plan, nullptr) << findings(first);
  EXPECT_EQ(first.plan->settings.memory_max, 1'500'000'000);
  const std::string& resolved = first.plan->resolved_toml;
  EXPECT_NE(resolved.find("memory_max = \"1500MB\"\n"), std::string::npos);
  EXPECT_NE(resolved.find("bytes_max = \"1MiB\", record"), std::string::npos);
  EXPECT_NE(resolved.find("bytes_max = \"8GiB\"\n"), std::string::npos) << "a default";
  const auto second = load(resolved);
  ASSERT_NE(second.plan, nullptr) << findings(second);
  EXPECT_EQ(second.plan->graph_hash, first.plan->graph_hash);
  const auto bytes = load(replaced(text, "\"1.5GB\"", "1500000000"));
  ASSERT_NE(bytes.plan, nullptr) << findings(bytes);
  EXPECT_EQ(bytes.plan->graph_hash, first.plan->graph_hash) << "the same size, written otherwise";
}

}  // namespace
}  // namespace primerl::testing
