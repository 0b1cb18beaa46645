/// Layers of a plan for drawing: a node stands one layer behind the last node that feeds it
/// forward.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "graph/plan.h"

namespace primerl {

/// Node indices by layer, in plan order within a layer.
std::vector<std::vector<size_t>> layers_of(const Plan& plan);
/// "per tenant, 2 replicas, own thread, engine 'engine'": what a box says under its name.
std::string traits_of(const Plan& plan, const PlanNode& node);
std::string_view output_name(const Plan& plan, const PlanEdge& edge);
std::string_view input_name(const Plan& plan, const PlanEdge& edge);
std::string_view message_name(const Plan& plan, const PlanEdge& edge);

}  // namespace primerl
