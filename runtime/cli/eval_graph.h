/// The graph with which `eval` plays: that of a training run without what trains. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "graph/plan.h"

namespace primerl {

/// Values of the command line that replace those of the graph.
struct EvaluationChanges {
  std::string model;    // absolute path of a folder; "" = the one of the graph
  std::string tenant;   // "" = all tenants
  int64_t samples = 0;  // 0 = those of the graph
  int64_t rows = 0;     // 0 = those of the graph
};

/// The text of a graph with the nodes of `plan` that play and judge rollouts, their edges,
/// resources and places; without those that groups are sent to (trainer, broadcaster) and
/// gateways. The rollouts sample the engines' own weights, without an adapter.
Result<std::string> evaluation_graph(const Plan& plan, const EvaluationChanges& changes);

}  // namespace primerl
