// Examples and reference pages with the real catalog: the examples pass `check`, and the committed
// reference equals the option registry. `PRIMERL_UPDATE_GOLDEN=1 reference_test` writes
// docs/reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "graph/config/reference_docs.h"
#include "graph/config/schema.h"
#include "graph/plan.h"
#include "graph/render_drawing.h"
#include "runtime/backends/resource_catalog.h"
#include "tests/graph/drawing_check.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
const fs::path kSource = PRIMERL_SOURCE_DIR;

std::string read(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void expect_page(const std::string& name, const std::string& text) {
  const fs::path path = kSource / "docs/reference" / name;
  if (std::getenv("PRIMERL_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << text;
  EXPECT_EQ(read(path), text) << path << " is old";
}

TEST(Reference, PagesEqualTheRegistry) {
  for (const auto& page : reference_pages(full_catalog())) expect_page(page.file, page.text);
}

TEST(Reference, TheSchemaEqualsTheRegistry) {
  expect_page("graph.schema.json", graph_schema(full_catalog()).dump(1) + "\n");
}

/// Loads every graph below `folder`. A graph whose model does not exist yet gets the demo's model.
template <class Use>
void with_graphs_of(const std::string& folder, Use use) {
  size_t num_used = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kSource / folder)) {
    if (entry.path().extension() != ".toml" || entry.path().filename() == "hosts.toml") continue;
    // tests/cli/check_test.cc checks the files of its tenants.
    if (entry.path().parent_path().filename() == "hosted" && entry.path().stem() != "graph")
      continue;
    // It needs its plugin: tests/plugins/installed_test.cc builds and checks it.
    if (entry.path().parent_path().filename() == "plugin") continue;
    Overrides overrides;
    overrides.cores = 2;
    if (!fs::exists(entry.path().parent_path() / "model"))
      overrides.sets = {"model.policy.path=" + (kSource / "examples/reverse_text/model").string()};
    use(entry.path(), load_graph(entry.path().string(), overrides, full_catalog()));
    ++num_used;
  }
  EXPECT_GE(num_used, 2u);
}

TEST(Reference, EveryExampleChecksClean) {
  with_graphs_of("examples", [](const fs::path& path, const CheckedGraph& graph) {
    EXPECT_NE(graph.plan, nullptr) << path << "\n" << render(graph.diagnostics, graph.sources);
  });
}

TEST(Reference, EveryExampleIsDrawnSoundlyAndNoLineCrossesALabel) {
  with_graphs_of("examples", [](const fs::path& path, const CheckedGraph& graph) {
    ASSERT_NE(graph.plan, nullptr) << path;
    const Drawing drawing = draw(*graph.plan);
    EXPECT_EQ(testing::drawing_faults(*graph.plan, drawing), "") << path;
    EXPECT_EQ(testing::num_crossed_labels(drawing), 0u) << path;
  });
}

// Equal resolved texts have equal hashes: the run and its record are the same.
TEST(Reference, TheShortDemoIsThePlanOfTheOneThatIsWrittenOut) {
  Overrides overrides;
  overrides.cores = 2;
  const auto load = [&](const std::string& file) {
    return load_graph((kSource / "examples/reverse_text" / file).string(), overrides,
                      full_catalog());
  };
  const CheckedGraph brief = load("graph.toml"), full = load("full.toml");
  ASSERT_NE(brief.plan, nullptr) << render(brief.diagnostics, brief.sources);
  ASSERT_NE(full.plan, nullptr) << render(full.diagnostics, full.sources);
  EXPECT_EQ(brief.plan->resolved_toml, full.plan->resolved_toml);
  EXPECT_EQ(brief.plan->graph_hash, full.plan->graph_hash);
  const std::string text = read(kSource / "examples/reverse_text/graph.toml");
  EXPECT_LE(std::ranges::count(text, '\n'), 28);
}

TEST(Reference, ASecondTenantNeedsATrainerOfItsOwn) {
  Overrides overrides;
  overrides.cores = 2;
  const std::string text =
      "[tenant.one]\nenvironment = { name = \"copy\" }\nadapter = { rank = 2 }\n"
      "[tenant.two]\nenvironment = { name = \"copy\" }\nadapter = { rank = 2 }\n"
      "[model.policy]\npath = \"model\"\n";
  const auto load = [&](const std::string& graph) {
    return load_graph_text(graph, "graph.toml", (kSource / "examples/reverse_text").string(),
                           overrides, full_catalog());
  };
  const CheckedGraph one = load(text);
  EXPECT_NE(render(one.diagnostics, one.sources)
                .find("help: add a table [node.trainer] with per_tenant = true"),
            std::string::npos)
      << render(one.diagnostics, one.sources);
  const CheckedGraph two = load(text + "[node.trainer]\nper_tenant = true\n");
  EXPECT_NE(two.plan, nullptr) << render(two.diagnostics, two.sources);
}

TEST(Reference, BoundsOfTheDemoFollowFromItsRolloutsInFlight) {
  Overrides overrides;
  overrides.cores = 2;
  overrides.sets = {"model.policy.path=" + (kSource / "examples/reverse_text/model").string(),
                    "node.rollout.max_inflight=100"};
  const auto graph = load_graph((kSource / "examples/reverse_text/graph.toml").string(), overrides,
                                full_catalog());
  ASSERT_NE(graph.plan, nullptr) << render(graph.diagnostics, graph.sources);
  const auto bound = [&](const std::string& name) -> int64_t {
    for (const auto& edge : graph.plan->edges)
      if (edge.name == name) return edge.bound;
    ADD_FAILURE() << "no edge '" << name << "'";
    return -1;
  };
  EXPECT_EQ(bound("router.abort -> prefill.abort"), 200);
  EXPECT_EQ(bound("router.abort -> decode.abort"), 200);
  EXPECT_EQ(bound("prefill.done -> decode.request"), 128) << "capacity 64, one work turn of 64";
}

TEST(Reference, ASecondReadingOfTheResolvedDemoGivesTheSamePlan) {
  Overrides overrides;
  overrides.cores = 2;
  overrides.sets = {"model.policy.path=" + (kSource / "examples/reverse_text/model").string()};
  const auto first = load_graph((kSource / "examples/reverse_text/graph.toml").string(), overrides,
                                full_catalog());
  ASSERT_NE(first.plan, nullptr) << render(first.diagnostics, first.sources);
  // The resolved values stay the same on a machine with more cores.
  Overrides elsewhere;
  elsewhere.cores = 64;
  const auto second = load_graph_text(first.plan->resolved_toml, "graph.resolved.toml", "/",
                                      elsewhere, full_catalog());
  ASSERT_NE(second.plan, nullptr) << render(second.diagnostics, second.sources);
  EXPECT_EQ(second.plan->resolved_toml, first.plan->resolved_toml);
  EXPECT_EQ(second.plan->graph_hash, first.plan->graph_hash);
}

}  // namespace
}  // namespace primerl
