#include "graph/render.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "tests/graph/test_catalog.h"

namespace primerl::testing {
namespace {

using ::testing::HasSubstr;

class Render : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(graph_.plan, nullptr) << findings(graph_); }
  /// Compares with tests/graph/pictures/<name>.
  void expect_picture(const std::string& name, const std::string& seen) {
    const std::string path = std::string(PRIMERL_SOURCE_DIR) + "/tests/graph/pictures/" + name;
    if (std::getenv("PRIMERL_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << seen;
    std::ifstream file(path);
    const std::string expected{std::istreambuf_iterator<char>(file),
                               std::istreambuf_iterator<char>()};
    EXPECT_EQ(seen, expected) << name;
  }
  const CheckedGraph graph_ = load_text(demo_text());
};

TEST_F(Render, TextReadsAsWritten) { expect_picture("demo.txt", render_text(*graph_.plan)); }
TEST_F(Render, MermaidReadsAsWritten) {
  expect_picture("demo.mermaid", render_mermaid(*graph_.plan));
}
TEST_F(Render, DotReadsAsWritten) { expect_picture("demo.dot", render_dot(*graph_.plan)); }

TEST_F(Render, PlanReadsAsWritten) {
  std::string text = render_plan(*graph_.plan);
  // The first line has the hash, which depends on the folder's name.
  text.erase(0, text.find('\n') + 2);
  expect_picture("demo.plan.txt", text);
}

TEST_F(Render, JsonHasEveryEdgeWithItsBound) {
  const Json json = render_json(*graph_.plan);
  EXPECT_EQ(json.find("nodes")->as_array().size(), 7u);
  ASSERT_EQ(json.find("edges")->as_array().size(), graph_.plan->edges.size());
  for (size_t i = 0; i < graph_.plan->edges.size(); ++i) {
    const Json& edge = json.find("edges")->as_array()[i];
    EXPECT_EQ(edge.find("bound")->as_int(), graph_.plan->edges[i].bound);
    EXPECT_EQ(edge.find("from")->as_string() + " -> " + edge.find("to")->as_string(),
              graph_.plan->edges[i].name);
  }
}

TEST_F(Render, SvgHasABoxForEachNodeAndAPathForEachEdge) {
  const std::string svg = render_svg(*graph_.plan);
  const auto count = [&svg](const std::string& what) {
    size_t found = 0;
    for (size_t at = svg.find(what); at != std::string::npos; at = svg.find(what, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("<rect class=\"place\""), 1u);
  EXPECT_EQ(count("<rect class=\"node\""), graph_.plan->nodes.size());
  EXPECT_EQ(count("marker-end="), graph_.plan->edges.size());
  EXPECT_EQ(count("<svg"), 1u);
  EXPECT_THAT(svg, HasSubstr("</svg>"));
}

TEST(RenderMemory, ListsABaseOnceAndWhereItIsHeldAgain) {
  const std::string text = demo_text() + "[tenant.main.adapter]\nrank = 8\n";
  const auto together = load_text(text);
  ASSERT_NE(together.plan, nullptr) << findings(together);
  EXPECT_THAT(render_plan(*together.plan), HasSubstr("memory of main: 4.9 MiB\n"));
  EXPECT_THAT(render_plan(*together.plan),
              HasSubstr("engine 'engine' and learner 'learner'  base weights, held once"));
  const auto apart = load_text(
      replaced(text, "kind = \"weight_channel\"", "kind = \"weight_channel\"\nbackend = \"shm\"") +
      "[place]\nhands = { nodes = [\"env\", \"rollout\", \"router\", \"prefill\", \"decode\"] }\n"
      "mind = { nodes = [\"trainer\", \"broadcaster\"] }\n");
  ASSERT_NE(apart.plan, nullptr) << findings(apart);
  const std::string plan = render_plan(*apart.plan);
  EXPECT_THAT(plan, HasSubstr("engine 'engine'  base weights, held again in process 'mind'"));
  EXPECT_THAT(plan, HasSubstr("learner 'learner'  base weights, held again in process 'hands'"));
}

TEST(RenderNames, AngleBracketsOfADescriptionStayText) {
  const auto graph =
      load_text(replaced(demo_text(), "seed = 17", "seed = 17\ndescription = \"<b>bold</b>\""));
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  EXPECT_THAT(render_text(*graph.plan), HasSubstr("<b>bold</b>"));
}

}  // namespace
}  // namespace primerl::testing
