#include "graph/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "graph/base/counted.h"
#include "graph/render_layout.h"

namespace primerl {
namespace {

constexpr size_t kColumnsMax = 100;

using Box = std::vector<std::string>;  // lines of equal width

std::string padded(std::string_view text, size_t width) {
  return fmt::format("{:<{}}", text, width);
}

Box box_of(const Plan& plan, size_t index) {
  const auto& node = plan.nodes[index];
  std::vector<std::string> lines{node.name};
  if (const auto traits = traits_of(plan, node); !traits.empty())
    lines.push_back("(" + traits + ")");
  for (const auto& edge : plan.edges)
    if (edge.from.index() == index)
      lines.push_back(fmt::format(" {} {} {}.{}", output_name(plan, edge),
                                  edge.feedback ? "~~>" : "-->", plan.node(edge.to).name,
                                  input_name(plan, edge)));
  size_t width = 0;
  for (const auto& line : lines) width = std::max(width, line.size());
  Box box{"+" + std::string(width + 2, '-') + "+"};
  for (const auto& line : lines) box.push_back("| " + padded(line, width) + " |");
  box.push_back(box.front());
  return box;
}

/// Boxes side by side, as many as fit into one line.
std::string row_of(const std::vector<Box>& boxes) {
  std::string text;
  for (size_t begin = 0; begin < boxes.size();) {
    size_t end = begin, width = 0, height = 0;
    while (end < boxes.size() &&
           (end == begin || width + 2 + boxes[end].front().size() <= kColumnsMax)) {
      width += boxes[end].front().size() + 2;
      height = std::max(height, boxes[end].size());
      ++end;
    }
    for (size_t line = 0; line < height; ++line) {
      std::string drawn;
      for (size_t i = begin; i < end; ++i)
        drawn += "  " + (line < boxes[i].size() ? boxes[i][line]
                                                : std::string(boxes[i].front().size(), ' '));
      drawn.erase(drawn.find_last_not_of(' ') + 1);
      text += drawn + "\n";
    }
    begin = end;
  }
  return text;
}

/// Removes quotes and newlines, which would end a label of Mermaid or DOT.
std::string label(std::string_view text) {
  std::string clean;
  for (const char c : text) clean += c == '"' || c == '\n' || c == '\\' ? ' ' : c;
  return clean;
}

/// The name without the replica: its '#' would begin an entity of Mermaid.
std::string place_name(const PlanProcess& process) {
  return process.name.substr(0, process.name.find('#'));
}

/// Calls the functions for each place once, not for each replica.
template <class Open, class Node, class Close>
void by_process(const Plan& plan, Open open, Node node, Close close) {
  for (size_t process = 0; process < plan.processes.size(); ++process) {
    if (plan.processes[process].replica > 0) continue;
    open(plan.processes[process], process);
    for (size_t index = 0; index < plan.nodes.size(); ++index)
      if (plan.nodes[index].process.index() == process) node(plan.nodes[index]);
    close();
  }
}

/// All edges between two nodes, drawn as one line from the sender of the first to its receiver.
struct Line {
  size_t from = 0, to = 0;
  std::vector<std::string_view> work, feedback;  ///< names of the outputs
  bool is_two_way = false;
};

/// Lines with forward edges come first.
std::vector<Line> lines_of(const Plan& plan) {
  std::vector<Line> lines;
  for (const bool is_feedback : {false, true})
    for (const auto& edge : plan.edges) {
      if (edge.feedback != is_feedback) continue;
      const size_t from = edge.from.index(), to = edge.to.index();
      auto line = std::ranges::find_if(lines, [&](const Line& one) {
        return (one.from == from && one.to == to) || (one.from == to && one.to == from);
      });
      if (line == lines.end()) line = lines.insert(line, Line{from, to, {}, {}, false});
      if (line->from != from) line->is_two_way = true;
      (is_feedback ? line->feedback : line->work).push_back(output_name(plan, edge));
    }
  return lines;
}

}  // namespace

std::string tenants_text(const Plan& plan) {
  const std::string text = counted(plan.tenants.size(), "tenant");
  return plan.settings.tenant_limits.are_set()
             ? fmt::format("{} of {}", text, counted(plan.num_slots(), "slot"))
             : text;
}

std::string render_text(const Plan& plan) {
  std::string text =
      fmt::format("{}: {}, {}, {}, {}\n", plan.settings.name, counted(plan.nodes.size(), "node"),
                  counted(plan.edges.size(), "edge"), tenants_text(plan),
                  counted(plan.processes.size(), "process", "processes"));
  if (!plan.settings.description.empty()) text += plan.settings.description + "\n";
  text += "--> forward: stops its sender while full   ~~> feedback: never stops its sender\n\n";
  const auto layers = layers_of(plan);
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (layer > 0) text += "       |\n       v\n";
    std::vector<Box> boxes;
    for (const size_t node : layers[layer]) boxes.push_back(box_of(plan, node));
    text += row_of(boxes);
  }
  return text;
}

std::string render_mermaid(const Plan& plan) {
  std::string text = "flowchart LR\n";
  const bool has_subgraphs = plan.processes.size() > 1;
  by_process(
      plan,
      [&](const PlanProcess& process, size_t) {
        if (has_subgraphs)
          text += fmt::format("  subgraph {}\n    direction LR\n", place_name(process));
      },
      [&](const PlanNode& node) {
        const auto traits = traits_of(plan, node);
        text += fmt::format("{2}{0}[\"{0}{1}\"]\n", node.name,
                            traits.empty() ? "" : "<br/>" + label(traits),
                            has_subgraphs ? "    " : "  ");
      },
      [&] {
        if (has_subgraphs) text += "  end\n";
      });
  for (const auto& line : lines_of(plan)) {
    std::string names;
    if (!line.work.empty()) names = fmt::format("<b>{}</b>", fmt::join(line.work, ", "));
    if (!line.work.empty() && !line.feedback.empty()) names += "<br/>";
    names += fmt::format("{}", fmt::join(line.feedback, ", "));
    text += fmt::format("  {} {}{}|\"{}\"| {}\n", plan.nodes[line.from].name,
                        line.is_two_way ? "<" : "", line.work.empty() ? "-.->" : "-->", names,
                        plan.nodes[line.to].name);
  }
  return text;
}

std::string render_dot(const Plan& plan) {
  std::string text = fmt::format("digraph \"{}\" {{\n", label(plan.settings.name));
  text += "  rankdir=LR;\n  node [shape=box, fontname=\"Helvetica\"];\n";
  by_process(
      plan,
      [&](const PlanProcess& process, size_t index) {
        text += fmt::format("  subgraph cluster_{} {{\n    label=\"{} ({})\";\n", index,
                            place_name(process), label(process.device));
      },
      [&](const PlanNode& node) {
        text += fmt::format("    {0} [label=\"{0}\\n{1}\"];\n", node.name,
                            label(traits_of(plan, node)));
      },
      [&] { text += "  }\n"; });
  for (const auto& edge : plan.edges)
    text += fmt::format("  {} -> {} [label=\"{}\"{}];\n", plan.node(edge.from).name,
                        plan.node(edge.to).name, output_name(plan, edge),
                        edge.feedback ? ", style=dashed, constraint=false" : "");
  return text + "}\n";
}

Json render_json(const Plan& plan) {
  Json nodes = Json::array(), edges = Json::array(), resources = Json::array();
  for (const auto& node : plan.nodes) {
    Json item = Json::object();
    item.set("name", node.name).set("actor", node.contract->name);
    item.set("per_tenant", node.per_tenant).set("replicas", node.replicas);
    item.set("process", plan.processes[node.process.index()].name);
    nodes.push_back(std::move(item));
  }
  for (const auto& edge : plan.edges) {
    Json item = Json::object();
    item.set("from", fmt::format("{}.{}", plan.node(edge.from).name, output_name(plan, edge)));
    item.set("to", fmt::format("{}.{}", plan.node(edge.to).name, input_name(plan, edge)));
    item.set("message", message_name(plan, edge)).set("feedback", edge.feedback);
    item.set("capacity", edge.capacity).set("bytes_max", edge.bytes_max);
    item.set("latest_wins", edge.latest_wins).set("bound", edge.bound);
    item.set("record", to_string(edge.record)).set("transport", to_string(edge.transport));
    edges.push_back(std::move(item));
  }
  for (const auto& resource : plan.resources) {
    Json item = Json::object();
    item.set("name", resource.name).set("kind", resource.kind).set("backend", resource.backend);
    if (resource.model >= 0)
      item.set("model", plan.models[static_cast<size_t>(resource.model)].name);
    if (resource.contract != nullptr && resource.contract->computes)
      item.set("threads", resource.threads);
    resources.push_back(std::move(item));
  }
  Json groups = Json::array(), tenants = Json::array(), processes = Json::array();
  for (const auto& group : plan.groups) {
    std::vector<std::string> instances;
    for (const InstanceId id : group.instances) instances.push_back(plan.instance(id).name);
    groups.push_back(Json::object()
                         .set("name", group.name)
                         .set("process", plan.processes[group.process.index()].name)
                         .set("own_thread", group.own_thread)
                         .set("instances", Json::list(instances)));
  }
  for (const auto& tenant : plan.tenants) tenants.push_back(tenant.name);
  for (const auto& process : plan.processes)
    processes.push_back(Json::object()
                            .set("name", process.name)
                            .set("device", process.device)
                            .set("replica", process.replica)
                            .set("machine", process.machine));
  return Json::object()
      .set("schema", "primerl.graph/1")
      .set("name", plan.settings.name)
      .set("graph_hash", fmt::format("{:016x}", plan.graph_hash))
      .set("trace", plan.trace.level)
      .set("tenants", std::move(tenants))
      .set("processes", std::move(processes))
      .set("nodes", std::move(nodes))
      .set("edges", std::move(edges))
      .set("resources", std::move(resources))
      .set("groups", std::move(groups));
}

}  // namespace primerl
