// G090: options that are accepted and change nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/graph/test_catalog.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// The test catalog, in which `kv_blocks` and `optimizer.lr` change nothing on the CPU.
Catalog idle_catalog() {
  Catalog catalog = test_catalog();
  for (ResourceContract& resource : catalog.resources)
    resource.idle_options = [](const void*, const std::set<std::string>& devices,
                               std::span<const Tenant> tenants) {
      EXPECT_FALSE(tenants.empty());
      std::vector<ResourceContract::IdleOption> idle;
      for (const char* option : {"kv_blocks", "optimizer.lr", "optimizer.none", "loss.kind.none"})
        if (devices == std::set<std::string>{"cpu"})
          idle.push_back({option, "it is on the CPU", "remove the key"});
      return idle;
    };
  return catalog;
}

std::string all_on(const std::string& devices) {
  return "[place]\nall = { nodes = [\"env\", \"rollout\", \"router\", \"prefill\", "
         "\"decode\", \"trainer\", \"broadcaster\"], " +
         devices + " }\n";
}

/// The demo's graph with another number of blocks than the default.
std::string many_blocks() { return replaced(demo_text(), "kv_blocks = 512", "kv_blocks = 600"); }

// `show --resolved` writes all defaults, and a resumed run reads that text.
TEST(IdleRules, ADefaultIsNotReported) {
  const Catalog catalog = idle_catalog();
  const Folder folder;
  const auto graph = load_graph_text(demo_text(), "graph.toml", folder.path(), {}, catalog);
  EXPECT_THAT(codes_of(graph), ElementsAre("G090")) << "optimizer.lr alone";
}

TEST(IdleRules, AnOptionIsReportedIfItHasAnEffectOnNoDevice) {
  const Catalog catalog = idle_catalog();
  const auto found_with = [&catalog](const std::string& place) {
    const Folder folder;
    return codes_of(
        load_graph_text(many_blocks() + place, "graph.toml", folder.path(), {}, catalog));
  };
  EXPECT_THAT(found_with(""), ElementsAre("G090", "G090")) << "an option that is not written";
  EXPECT_THAT(found_with(all_on("device = \"cpu\"")), ElementsAre("G090", "G090"));
  EXPECT_THAT(found_with(all_on("device = \"cuda:0\"")), IsEmpty());
}

TEST(IdleRules, TheReportIsAtTheValueAndSaysWhatToDo) {
  const Catalog catalog = idle_catalog();
  const Folder folder;
  const auto graph = load_graph_text(many_blocks(), "graph.toml", folder.path(), {}, catalog);
  EXPECT_NE(graph.plan, nullptr) << "a warning";
  const auto& found = graph.diagnostics.all().front();
  EXPECT_EQ(found.message, "'kv_blocks' of resource 'engine' has no effect: it is on the CPU");
  EXPECT_EQ(found.help, "remove the key");
}

TEST(IdleRules, AMemoryLimitNeedsAPlaceOnTheCpu) {
  const auto with = [](const std::string& graph, const std::string& hands,
                       const std::string& mind) {
    return codes_of(
        load_text(replaced(demo_text(), "seed = 17", "seed = 17\n" + graph) +
                  "[place]\nhands = { nodes = [\"env\", \"rollout\", \"router\"]" + hands +
                  " }\nmind = { nodes = [\"prefill\", \"decode\", \"trainer\", \"broadcaster\"]" +
                  mind + " }\n"));
  };
  const std::string limit = "memory_max = 1000000000000";
  const std::string cuda = ", device = \"cuda:0\"", own = ", " + limit;
  EXPECT_THAT(with(limit, "", cuda), IsEmpty()) << "it limits the other place";
  EXPECT_THAT(with(limit, own, cuda), ElementsAre("G090"));
  EXPECT_THAT(with(limit, own, ""), IsEmpty());
  EXPECT_THAT(with("", "", own), IsEmpty());
  EXPECT_THAT(with("", "", own + cuda), ElementsAre("G090"));
  EXPECT_THAT(with("", "", own + ", devices = [\"cuda:0\", \"cpu\"], replicas = 2"),
              ::testing::Not(::testing::Contains("G090")))
      << "one replica is on the CPU";
}

}  // namespace
}  // namespace primerl::testing
