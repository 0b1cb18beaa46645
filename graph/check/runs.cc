// Rules about environments that drive rollouts (docs/design/verifiers.md).
#include <algorithm>

#include "graph/check/names.h"
#include "graph/check/rules.h"
#include "graph/tenant_outside.h"

namespace primerl {
namespace {

/// Names of the ports that runs need, "rollout.run", and whether an edge has each.
struct RunPorts {
  std::vector<std::string> unconnected;
  bool has_gateway = false;
};

bool is_connected(const Draft& draft, int32_t node, int32_t port, bool is_output) {
  return std::ranges::any_of(draft.edges, [&](const DraftEdge& edge) {
    return is_output ? edge.from == node && edge.output == port
                     : edge.to == node && edge.input == port;
  });
}

RunPorts run_ports(const Draft& draft) {
  RunPorts found;
  for (size_t i = 0; i < draft.nodes.size(); ++i) {
    const DraftNode& node = draft.nodes[i];
    if (node.contract == nullptr) continue;
    const auto look = [&](const auto& ports, bool is_output) {
      for (size_t port = 0; port < ports.size(); ++port) {
        if (!ports[port].serves_runs) continue;
        // Only a gateway knows an address.
        found.has_gateway |= is_output && ports[port].name == "address";
        if (!is_connected(draft, static_cast<int32_t>(i), static_cast<int32_t>(port), is_output))
          found.unconnected.push_back(fmt::format("{}.{}", node.spec->name, ports[port].name));
      }
    };
    look(node.contract->inputs, false);
    look(node.contract->outputs, true);
  }
  return found;
}

}  // namespace

void check_runs(Draft& draft) {
  const DraftTenant* driven = nullptr;
  for (const DraftTenant& tenant : draft.tenants)
    for_each_environment(tenant, [&](const DraftTenant& each) {
      if (!drives_rollouts(each.tenant)) return;
      if (driven == nullptr) driven = &each;
      if (each.tenant.rewards.empty()) return;
      draft.diagnostics
          .error("G085", value_span(*each.spec, "reward"),
                 "tenant '{}' has rewards, but its environment '{}' plays and scores whole "
                 "rollouts",
                 each.spec->name, each.tenant.environment.name)
          .suggest("remove 'reward', and score in the environment");
    });
  if (driven == nullptr || draft.spec.has_lost_edges) return;
  const RunPorts ports = run_ports(draft);
  const Span span = value_span(*driven->spec, "environment");
  const std::string& name = driven->tenant.environment.name;
  if (!ports.has_gateway) {
    draft.diagnostics
        .error("G076", span,
               "the environment '{}' of tenant '{}' calls the policy over HTTP, but the graph has "
               "no gateway",
               name, driven->spec->name)
        .suggest(
            "remove [edges]: then a gateway is implied, or add [resource.gateway] (kind = "
            "\"outside\", backend = \"http\"), [node.gateway] and its edges");
    return;
  }
  if (ports.unconnected.empty()) return;
  draft.diagnostics
      .error("G076", span, "the environment '{}' of tenant '{}' needs ports without an edge: {}",
             name, driven->spec->name, fmt::format("{}", fmt::join(ports.unconnected, ", ")))
      .note(
          "forward: gateway.turn -> rollout.turn; feedback: rollout.run -> env.run, "
          "rollout.cancel_runs -> env.cancel_runs, env.run_answered -> rollout.run_answered, "
          "rollout.closed -> gateway.closed, gateway.address -> rollout.address")
      .suggest("add these edges, or remove [edges]: then they are implied");
}

}  // namespace primerl
