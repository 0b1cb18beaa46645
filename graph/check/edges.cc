// Resolves [edges] to nodes and ports, and checks single edges and ports.
#include <algorithm>
#include <map>
#include <tuple>

#include "graph/check/names.h"
#include "graph/check/rules.h"
#include "graph/config/toml_source.h"

namespace primerl {
namespace {

Span node_span(const Draft& draft, const EdgeSpec& edge, const EdgeEnd& end) {
  return span_inside(draft.sources, *edge.path, end.node_offset, end.node.size());
}
Span port_span(const Draft& draft, const EdgeSpec& edge, const EdgeEnd& end) {
  return span_inside(draft.sources, *edge.path, end.node_offset,
                     end.port_offset - end.node_offset + end.port.size());
}
/// The same, or for an edge of a built-in loop the actor that the file gives the node.
Span port_span(const Draft& draft, const EdgeSpec& edge, const EdgeEnd& end,
               const DraftNode& node) {
  return written_span(draft, {port_span(draft, edge, end), value_span(*node.spec, "actor")});
}

int32_t find_node(Draft& draft, const EdgeSpec& edge, const EdgeEnd& end) {
  const auto found = draft.node_by_name.find(end.node);
  if (found != draft.node_by_name.end()) return found->second;
  const Span span = node_span(draft, edge, end);
  const std::string missing = fmt::format("node '{}'", end.node);
  if (is_reported(draft, missing, span)) return -1;
  std::vector<std::string> known;
  for (const auto& node : draft.nodes) known.push_back(node.spec->name);
  auto& fault = draft.diagnostics.error("G011", span, "there is no {}", missing);
  remember_report(draft, missing, fault);
  if (!known.empty() && known.size() <= 20) fault.note(fmt::format("nodes: {}", join_names(known)));
  suggest_name(fault, end.node, known);
  return -1;
}

template <class Port>
std::string ports_with_types(const std::vector<Port>& ports) {
  std::vector<std::string> names;
  for (const auto& port : ports)
    names.push_back(fmt::format("{} ({})", port.name, port.type->name));
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

template <class Port>
int32_t index_of(const std::vector<Port>& ports, std::string_view name) {
  for (size_t i = 0; i < ports.size(); ++i)
    if (ports[i].name == name) return static_cast<int32_t>(i);
  return -1;
}

/// Suggests "node.port" for a misspelt one.
void suggest_port(Diagnostic& found, const EdgeEnd& end, const std::vector<std::string>& known) {
  if (const auto near = nearest_name(end.port, known); !near.empty())
    found.suggest(fmt::format("did you mean '{}.{}'?", end.node, near));
}

int32_t find_output(Draft& draft, const DraftNode& node, const EdgeSpec& edge) {
  const int32_t output = index_of(node.contract->outputs, edge.from.port);
  if (output >= 0) return output;
  const Span span = port_span(draft, edge, edge.from, node);
  if (node.contract->find_input(edge.from.port) != nullptr) {
    draft.diagnostics
        .error("G031", span, "'{}' is an input of '{}': an edge starts at an output",
               edge.from.port, edge.from.node)
        .note(fmt::format("outputs of actor '{}': {}", node.contract->name,
                          ports_with_types(node.contract->outputs)));
    return -1;
  }
  auto& found = draft.diagnostics.error("G012", span, "'{}' has no output port '{}'",
                                        edge.from.node, edge.from.port);
  found.note(fmt::format("outputs of actor '{}': {}", node.contract->name,
                         ports_with_types(node.contract->outputs)));
  suggest_port(found, edge.from, node.contract->output_names());
  return -1;
}

int32_t find_input(Draft& draft, const DraftNode& node, const EdgeSpec& edge) {
  const int32_t input = index_of(node.contract->inputs, edge.to.port);
  if (input >= 0) return input;
  const Span span = port_span(draft, edge, edge.to, node);
  if (node.contract->find_output(edge.to.port) != nullptr) {
    draft.diagnostics
        .error("G031", span, "'{}' is an output of '{}': an edge ends at an input", edge.to.port,
               edge.to.node)
        .note(fmt::format("inputs of actor '{}': {}", node.contract->name,
                          ports_with_types(node.contract->inputs)));
    return -1;
  }
  auto& found = draft.diagnostics.error("G012", span, "'{}' has no input port '{}'", edge.to.node,
                                        edge.to.port);
  found.note(fmt::format("inputs of actor '{}': {}", node.contract->name,
                         ports_with_types(node.contract->inputs)));
  suggest_port(found, edge.to, node.contract->input_names());
  return -1;
}

void check_types(Draft& draft, DraftEdge& edge) {
  const auto& from = draft.nodes[static_cast<size_t>(edge.from)];
  const auto& to = draft.nodes[static_cast<size_t>(edge.to)];
  const auto& output = from.contract->outputs[static_cast<size_t>(edge.output)];
  const auto& input = to.contract->inputs[static_cast<size_t>(edge.input)];
  if (output.type == input.type) return;
  edge.is_mismatch = true;
  const Span span = written_span(
      draft, {port_span(draft, *edge.spec, edge.spec->from, from), value_span(*to.spec, "actor")});
  auto& found = draft.diagnostics.error("G032", span, "'{}.{}' sends {}, but '{}.{}' takes {}",
                                        from.spec->name, output.name, output.type->name,
                                        to.spec->name, input.name, input.type->name);
  std::vector<std::string> fitting;
  for (const auto& port : to.contract->inputs)
    if (port.type == output.type) fitting.push_back(port.name);
  if (!fitting.empty())
    found.note(fmt::format("inputs of '{}' that take {}: {}", to.spec->name, output.type->name,
                           join_names(fitting)));
}

/// For each node and port, the number of edges.
using Touched = std::vector<std::vector<int32_t>>;

Touched count_edges(const Draft& draft, bool outputs) {
  Touched touched(draft.nodes.size());
  for (size_t i = 0; i < draft.nodes.size(); ++i)
    if (const Contract* contract = draft.nodes[i].contract)
      touched[i].resize(outputs ? contract->outputs.size() : contract->inputs.size());
  for (const auto& edge : draft.edges) {
    const int32_t node = outputs ? edge.from : edge.to;
    const int32_t port = outputs ? edge.output : edge.input;
    if (port >= 0) ++touched[static_cast<size_t>(node)][static_cast<size_t>(port)];
  }
  return touched;
}

/// Nodes that a broken edge may have meant: their unconnected ports are not reported.
std::vector<bool> doubtful_nodes(const Draft& draft) {
  std::vector<bool> is_doubtful(draft.nodes.size());
  std::vector<std::string> names;
  const auto doubt = [&](int32_t node, std::string_view written) {
    if (node < 0) {
      if (names.empty())
        for (const auto& known : draft.nodes) names.push_back(known.spec->name);
      const auto near = draft.node_by_name.find(nearest_name(written, names));
      if (near == draft.node_by_name.end()) return;
      node = near->second;
    }
    is_doubtful[static_cast<size_t>(node)] = true;
  };
  for (const auto& edge : draft.edges) {
    if (edge.is_whole() && !edge.is_mismatch) continue;
    doubt(edge.from, edge.spec->from.node);
    doubt(edge.to, edge.spec->to.node);
  }
  for (const auto& text : draft.spec.broken_edges)
    for (size_t node = 0; node < draft.nodes.size(); ++node)
      if (text.find(draft.nodes[node].spec->name) != std::string::npos) is_doubtful[node] = true;
  return is_doubtful;
}

/// Instances of one tenant that an edge reaches in one replica of its target's place; 1 if the
/// replicas are an error already.
int64_t reach_of(const DraftNode& node) {
  const bool owns = std::any_of(node.contract->resources.begin(), node.contract->resources.end(),
                                [](const ResourceUse& use) { return is_exclusive(use.kind); });
  return node.contract->is_single || owns ? 1 : node.common.replicas;
}

/// Replicas of the target's place that one source instance reaches; inside a place each replica
/// sends only to itself.
int64_t replicas_reached(const Draft& draft, const DraftEdge& edge) {
  const auto& from = draft.nodes[static_cast<size_t>(edge.from)];
  const auto& to = draft.nodes[static_cast<size_t>(edge.to)];
  if (from.place == to.place || to.contract->is_single) return 1;
  return place_replicas(draft, to);
}

}  // namespace

void resolve_edges(Draft& draft) {
  draft.edges.reserve(draft.spec.edge_list.size());
  for (const auto& spec : draft.spec.edge_list) {
    DraftEdge edge;
    edge.spec = &spec;
    edge.from = find_node(draft, spec, spec.from);
    edge.to = find_node(draft, spec, spec.to);
    if (edge.from >= 0 && draft.nodes[static_cast<size_t>(edge.from)].contract != nullptr)
      edge.output = find_output(draft, draft.nodes[static_cast<size_t>(edge.from)], spec);
    if (edge.to >= 0 && draft.nodes[static_cast<size_t>(edge.to)].contract != nullptr)
      edge.input = find_input(draft, draft.nodes[static_cast<size_t>(edge.to)], spec);
    if (edge.is_whole()) check_types(draft, edge);
    draft.edges.push_back(edge);
  }
}

namespace {

bool may_be_open(const auto& port, const DraftNode& node) {
  return port.is_optional || (port.is_optional_if && port.is_optional_if(node.options.get()));
}

}  // namespace

void check_connected(Draft& draft) {
  if (draft.spec.has_lost_edges) return;
  const auto is_doubtful = doubtful_nodes(draft);
  const Touched outputs = count_edges(draft, true), inputs = count_edges(draft, false);
  for (size_t i = 0; i < draft.nodes.size(); ++i) {
    const auto& node = draft.nodes[i];
    if (node.contract == nullptr || is_doubtful[i]) continue;
    for (size_t port = 0; port < node.contract->inputs.size(); ++port) {
      const auto& input = node.contract->inputs[port];
      if (inputs[i][port] > 0 || may_be_open(input, node)) continue;
      draft.diagnostics
          .error("G033", node.spec->name_span, "input '{}' of node '{}' is not connected",
                 input.name, node.spec->name)
          .note(fmt::format("it takes {}: {}", input.type->name, input.doc));
    }
    for (size_t port = 0; port < node.contract->outputs.size(); ++port) {
      const auto& output = node.contract->outputs[port];
      if (outputs[i][port] > 0 || may_be_open(output, node)) continue;
      draft.diagnostics
          .error("G033", node.spec->name_span, "output '{}' of node '{}' is not connected",
                 output.name, node.spec->name)
          .note(fmt::format("it sends {}: {}", output.type->name, output.doc));
    }
  }
}

void check_fan_out(Draft& draft) {
  std::map<std::pair<int32_t, int32_t>, int64_t> targets;
  for (const auto& edge : draft.edges) {
    if (!edge.is_whole() || edge.is_repeated) continue;
    const auto& from = draft.nodes[static_cast<size_t>(edge.from)];
    const auto& output = from.contract->outputs[static_cast<size_t>(edge.output)];
    if (output.routing != Routing::kToOne) continue;
    if (const int64_t replicas = replicas_reached(draft, edge); replicas > 1) {
      const auto& to = draft.nodes[static_cast<size_t>(edge.to)];
      const auto& place = draft.places[static_cast<size_t>(to.place)];
      draft.diagnostics
          .error("G054",
                 written_span(draft, {edge.spec->path->span, value_span(*place.spec, "replicas")}),
                 "'{}.{}' sends to one, but place '{}' of node '{}' has {} replicas",
                 from.spec->name, output.name, place.spec->name, to.spec->name, replicas)
          .note(
              "an edge into a place with replicas must start at an output that selects the "
              "replica: addressed, keyed, broadcast or to_origin")
          .suggest(fmt::format(
              "put '{}' into place '{}' too, or put an actor between them that selects the replica",
              from.spec->name, place.spec->name));
      continue;
    }
    // The slots of a per_tenant target are distinguished by the envelope's tenant.
    auto& count = targets[{edge.from, edge.output}];
    const bool was_many = count > 1;
    const DraftNode& to = draft.nodes[static_cast<size_t>(edge.to)];
    count += reach_of(to);
    if (count <= 1 || was_many) continue;
    draft.diagnostics
        .error("G034",
               written_span(draft, {port_span(draft, *edge.spec, edge.spec->from),
                                    value_span(*to.spec, "replicas")}),
               "'{}.{}' would reach more than one instance, but it sends to one", from.spec->name,
               output.name)
        .note(fmt::format("routing of '{}': {}; broadcast, addressed, keyed and to_origin outputs "
                          "may have many targets",
                          output.name, to_string(output.routing)))
        .suggest(
            "keep one edge to one instance, or declare in the actor's contract how the output "
            "selects one");
  }
}

void check_feedback(Draft& draft) {
  const auto tenants = draft.tenant_values();
  for (const auto& edge : draft.edges) {
    if (!edge.is_whole() || !edge.spec->feedback) continue;
    if (feedback_number(draft, edge, tenants).is_stated) continue;
    const Span span =
        written_span(draft, {edge.spec->path->span,
                             value_span(*draft.nodes[static_cast<size_t>(edge.from)].spec, "actor"),
                             value_span(*draft.nodes[static_cast<size_t>(edge.to)].spec, "actor")});
    draft.diagnostics
        .error("G037", span, "no contract states how many messages '{}' may have",
               edge.spec->path->as_string())
        .note(
            "a feedback edge never stops its sender, so a contract must state at_most(...) or "
            "latest_wins()")
        .suggest("make it a forward edge, or state the number in the output's or input's contract");
  }
}

void check_edges_once(Draft& draft) {
  std::map<std::tuple<int32_t, int32_t, int32_t, int32_t>, const DraftEdge*> seen;
  for (auto& edge : draft.edges) {
    if (!edge.is_whole()) continue;
    const auto [first, is_new] =
        seen.emplace(std::tuple(edge.from, edge.output, edge.to, edge.input), &edge);
    if (is_new) continue;
    edge.is_repeated = true;
    const Span& span = first->second->spec->path->span;
    draft.diagnostics
        .error("G038", edge.spec->path->span, "the edge '{}' is written twice",
               edge.spec->path->as_string())
        .note(fmt::format("the first is at {}:{}:{}", draft.sources.get(span.source).name,
                          span.begin.line, span.begin.column));
  }
}

}  // namespace primerl
