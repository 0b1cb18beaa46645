#include "graph/render_layout.h"

#include <fmt/format.h>

#include <algorithm>

namespace primerl {

std::vector<std::vector<size_t>> layers_of(const Plan& plan) {
  std::vector<size_t> layer(plan.nodes.size());
  // Nodes are in forward order and edges are sorted by source, so one pass is enough.
  for (const auto& edge : plan.edges)
    if (!edge.feedback)
      layer[edge.to.index()] = std::max(layer[edge.to.index()], layer[edge.from.index()] + 1);
  std::vector<std::vector<size_t>> layers;
  for (size_t node = 0; node < layer.size(); ++node) {
    if (layers.size() <= layer[node]) layers.resize(layer[node] + 1);
    layers[layer[node]].push_back(node);
  }
  return layers;
}

std::string traits_of(const Plan& plan, const PlanNode& node) {
  std::vector<std::string> traits;
  if (node.contract->name != node.name) traits.push_back(node.contract->name);
  if (node.per_tenant) traits.push_back("per tenant");
  if (node.replicas > 1) traits.push_back(fmt::format("{} replicas", node.replicas));
  if (node.contract->thread_class == ThreadClass::kOwnThread) traits.push_back("own thread");
  for (const int32_t resource : plan.instance(node.instances.front()).resources) {
    if (resource < 0) continue;
    const auto& used = plan.resources[static_cast<size_t>(resource)];
    traits.push_back(used.kind == used.name ? used.name
                                            : fmt::format("{} {}", used.kind, used.name));
  }
  return fmt::format("{}", fmt::join(traits, ", "));
}

std::string_view output_name(const Plan& plan, const PlanEdge& edge) {
  return plan.node(edge.from).contract->outputs[edge.output].name;
}
std::string_view input_name(const Plan& plan, const PlanEdge& edge) {
  return plan.node(edge.to).contract->inputs[edge.input].name;
}
std::string_view message_name(const Plan& plan, const PlanEdge& edge) {
  return plan.node(edge.from).contract->outputs[edge.output].type->name;
}

}  // namespace primerl
