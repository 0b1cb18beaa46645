/// A graph of many nodes for tests and benchmarks of the checker.
#pragma once

#include <string>

namespace primerl::testing {

/// `num_nodes` nodes in a chain of rows. Each feeds the next `reach` nodes forward; the last ones
/// have fewer forward edges and feedback edges instead, num_nodes * reach edges in all. Uses actor
/// "mesh".
std::string large_graph(int num_nodes, int reach);

}  // namespace primerl::testing
