/// Layers of a plan for drawing: a node is one layer after the last node that feeds it by a forward
/// edge.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "graph/plan.h"

namespace primerl {

/// Node indices by layer, in plan order within a layer.
std::vector<std::vector<size_t>> layers_of(const Plan& plan);
/// The text under a node's name, for example "per tenant, 2 replicas, own thread, engine 'engine'".
std::string traits_of(const Plan& plan, const PlanNode& node);
std::string_view output_name(const Plan& plan, const PlanEdge& edge);
std::string_view input_name(const Plan& plan, const PlanEdge& edge);
std::string_view message_name(const Plan& plan, const PlanEdge& edge);

}  // namespace primerl
