// The geometry of pictures: rules for any graph. The examples are in reference_test.cc.
#include "graph/render_drawing.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "graph/base/random.h"
#include "graph/render.h"
#include "tests/graph/drawing_check.h"
#include "tests/graph/large_graph.h"
#include "tests/graph/test_catalog.h"

namespace primerl::testing {
namespace {

std::string shared_demo() {
  return replaced(demo_text(), "kind = \"weight_channel\"",
                  "kind = \"weight_channel\"\nbackend = \"shm\"");
}

constexpr const char* kFourPlaces = R"(
[place]
hands = { nodes = ["env"] }
mind = { nodes = ["rollout", "trainer"] }
post = { nodes = ["router", "broadcaster"] }
host_with_a_long_name = { nodes = ["prefill", "decode"], replicas = 2 }
)";

void expect_sound(const CheckedGraph& graph) {
  ASSERT_NE(graph.plan, nullptr) << findings(graph).substr(0, 2000);
  EXPECT_EQ(drawing_faults(*graph.plan, draw(*graph.plan)), "");
}

TEST(Drawing, ThatOfTheDemoIsSoundAndNoLineCrossesALabel) {
  const auto graph = load_text(demo_text());
  expect_sound(graph);
  EXPECT_EQ(num_crossed_labels(draw(*graph.plan)), 0u);
}

TEST(Drawing, PlacesStandAroundTheirNodes) {
  const auto graph = load_text(shared_demo() + kFourPlaces);
  expect_sound(graph);
  const Drawing drawing = draw(*graph.plan);
  std::set<std::string> places;
  for (const auto& place : drawing.places) places.insert(place.text);
  EXPECT_EQ(places, (std::set<std::string>{"hands on cpu", "mind on cpu", "post on cpu",
                                           "host_with_a_long_name on cpu, 2 replicas"}));
  const std::string svg = render_svg(*graph.plan);
  for (const auto& place : places) EXPECT_NE(svg.find(place), std::string::npos) << place;
}

TEST(Drawing, ForwardEdgesBetweenNeighboursAreOneStraightLine) {
  const auto graph = load_text(demo_text());
  const Drawing drawing = draw(*graph.plan);
  const auto& edges = graph.plan->edges;
  const auto task = std::find_if(edges.begin(), edges.end(), [](const PlanEdge& edge) {
    return edge.name == "env.task -> rollout.task";
  });
  ASSERT_NE(task, edges.end());
  EXPECT_EQ(drawing.edges[static_cast<size_t>(task - edges.begin())].line.size(), 2u);
}

/// Nodes with random edges in random places.
std::string random_graph(RandomStream& random) {
  const uint64_t num_nodes = 2 + random.below(14), num_places = 1 + random.below(4);
  std::string text = "[graph]\nname = \"random\"\n", forward, feedback;
  std::vector<std::string> places(num_places);
  for (uint64_t node = 0; node < num_nodes; ++node) {
    text += fmt::format("[node.n{}]\nactor = \"mesh\"\n", node);
    if (random.below(4) == 0) text += "replicas = 3\n";
    places[random.below(num_places)] += fmt::format("\"n{}\", ", node);
  }
  const uint64_t num_more = random.below(3 * num_nodes);
  std::set<std::pair<uint64_t, uint64_t>> seen;
  for (uint64_t i = 0; i < num_nodes + num_more; ++i) {
    // A ring first: each node has one input edge and one output edge.
    const uint64_t from = i < num_nodes ? i : random.below(num_nodes);
    const uint64_t to = i < num_nodes ? (i + 1) % num_nodes : random.below(num_nodes);
    if (!seen.emplace(from, to).second) continue;
    (from < to && random.below(3) > 0 ? forward : feedback) +=
        fmt::format("  \"n{}.out -> n{}.in\",\n", from, to);
  }
  text += fmt::format("[edges]\nforward = [\n{}]\nfeedback = [\n{}]\n[place]\n", forward, feedback);
  for (uint64_t place = 0; place < num_places; ++place)
    if (!places[place].empty())
      text += fmt::format("p{} = {{ nodes = [{}] }}\n", place, places[place]);
  return text;
}

TEST(Drawing, RandomGraphsAreSound) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    RandomStream random(seed);
    const std::string text = random_graph(random);
    const auto graph = load_text(text);
    ASSERT_NE(graph.plan, nullptr) << seed << "\n" << findings(graph);
    ASSERT_EQ(drawing_faults(*graph.plan, draw(*graph.plan)), "") << seed << "\n" << text;
  }
}

// This bound only detects a change in the order of growth.
TEST(Drawing, AThousandNodesAreDrawnQuickly) {
  const auto graph = load_text(large_graph(1000, 3));
  ASSERT_NE(graph.plan, nullptr);
  const auto begin = std::chrono::steady_clock::now();
  const Drawing drawing = draw(*graph.plan);
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(std::chrono::duration_cast<std::chrono::milliseconds>(took).count(), 3000);
  EXPECT_EQ(drawing.edges.size(), 3000u);
}

}  // namespace
}  // namespace primerl::testing
