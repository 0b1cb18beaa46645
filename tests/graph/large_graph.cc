#include "tests/graph/large_graph.h"

#include <fmt/format.h>

namespace primerl::testing {

std::string large_graph(int num_nodes, int reach) {
  std::string text = "[graph]\nname = \"large\"\n\n";
  for (int node = 0; node < num_nodes; ++node)
    text += fmt::format("[node.n{}]\nactor = \"mesh\"\n", node);
  std::string forward, feedback;
  for (int node = 0; node < num_nodes; ++node)
    for (int step = 1; step <= reach; ++step) {
      const bool wraps = node + step >= num_nodes;
      (wraps ? feedback : forward) +=
          fmt::format("  \"n{}.out -> n{}.in\",\n", node, (node + step) % num_nodes);
    }
  text += fmt::format("\n[edges]\nforward = [\n{}]\nfeedback = [\n{}]\n", forward, feedback);
  return text;
}

}  // namespace primerl::testing
