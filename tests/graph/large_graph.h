/// A graph of many nodes for tests and benchmarks of the checker.
#pragma once

#include <string>

namespace primerl::testing {

/// `num_nodes` nodes in a chain of rows, each feeding the next `reach` ones forward (the last ones
/// fewer, made up for by feedback edges), num_nodes * reach edges in all. Uses actor "mesh".
std::string large_graph(int num_nodes, int reach);

}  // namespace primerl::testing
