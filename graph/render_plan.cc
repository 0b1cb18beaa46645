// `show --plan` and `show --resolved`: the plan as text and numbers.
#include <fmt/format.h>

#include <algorithm>

#include "graph/outside.h"
#include "graph/plan_memory.h"
#include "graph/render.h"
#include "graph/render_layout.h"

namespace primerl {
namespace {

/// A table with columns as wide as their widest cell. The first `left` columns are aligned left,
/// the others right.
std::string table_text(const std::vector<std::vector<std::string>>& rows, size_t left) {
  std::vector<size_t> width;
  for (const auto& row : rows) {
    width.resize(std::max(width.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = "  ";
    for (size_t i = 0; i < row.size(); ++i)
      line += i < left ? fmt::format("{:<{}}  ", row[i], width[i])
                       : fmt::format("{:>{}}  ", row[i], width[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string resources_of(const Plan& plan, const PlanGroup& group) {
  std::vector<std::string> parts;
  for (const int32_t index : group.resources) {
    const auto& resource = plan.resources[static_cast<size_t>(index)];
    const bool is_of_slot = !resource.slot.is_none();
    if (is_of_slot && static_cast<const OutsideSpec*>(resource.options.get())->pools.empty())
      continue;  // until a tenant that asks outside joins
    const bool computes = resource.contract != nullptr && resource.contract->computes;
    parts.push_back(fmt::format("{} '{}' ({}{})", resource.kind, resource.name, resource.backend,
                                !computes ? ""
                                : resource.threads == 1
                                    ? ", 1 compute thread"
                                    : fmt::format(", {} compute threads", resource.threads)));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// For example ", machine gpu1, cpus 0-3, with OMP_PROC_BIND=close".
std::string where_text(const PlanProcess& process) {
  std::string text;
  if (!process.machine.empty()) text += ", machine " + process.machine;
  if (!process.cpus.empty()) text += fmt::format(", cpus {}", fmt::join(process.cpus, " "));
  if (!process.variables.empty())
    text += fmt::format(", with {}", fmt::join(process.variables, " "));
  return text;
}

constexpr size_t kShownPartsMax = 12;  // most lines for the memory of a process

/// For example ", held again in process 'learner'", for memory that only users in one process
/// share.
std::string again_text(const Plan& plan, const PlanProcess& process,
                       const ProcessMemory::Held& held) {
  for (const PlanProcess& other : plan.processes)
    if (&other != &process && held.part.sharing == Sharing::kModel &&
        memory_of(plan, other).find_shared(held.part.what, held.model) != nullptr)
      return fmt::format(", held again in process '{}'", other.name);
  return {};
}

/// Adds the memory of its engines and learners, in the order of the resources.
void add_memory(const Plan& plan, const PlanProcess& process, std::string& text) {
  const ProcessMemory memory = memory_of(plan, process);
  const double bytes = memory.bytes();
  std::vector<std::vector<std::string>> rows;
  for (const auto& held :
       std::span(memory.all()).first(std::min(memory.all().size(), kShownPartsMax)))
    rows.push_back({held.owners_text(),
                    held.what_text() + again_text(plan, process, held) +
                        (held.part.is_optional ? ", if there is enough memory" : ""),
                    memory_text(held.part.bytes)});
  const size_t num_left = memory.all().size() - rows.size();
  if (rows.empty()) return;
  text += fmt::format(
      "memory of {}: {}{}\n", process.name, memory_text(bytes),
      process.memory_max == 0
          ? ""
          : fmt::format(", at most {}", memory_text(static_cast<double>(process.memory_max))));
  text += table_text(rows, 2);
  if (num_left > 0) text += fmt::format("  and {} more\n", num_left);
}

void add_process(const Plan& plan, const PlanProcess& process, std::string& text) {
  int64_t threads = 0, own = 0;
  std::vector<std::vector<std::string>> rows;
  for (const GroupId id : process.groups) {
    const auto& group = plan.group(id);
    own += group.own_thread ? 1 : 0;
    for (const int32_t index : group.resources) {
      const auto& resource = plan.resources[static_cast<size_t>(index)];
      if (resource.contract != nullptr && resource.contract->computes) threads += resource.threads;
    }
    rows.push_back(
        {group.name, group.own_thread ? "own thread" : "pool", resources_of(plan, group)});
  }
  text += fmt::format(
      "process {} on {}: {} actor groups, {} of them on threads of their own, {} "
      "compute threads{}\n",
      process.name, process.device, process.groups.size(), own, threads, where_text(process));
  text += table_text(rows, 3);
  add_memory(plan, process, text);
}

/// The number of (source, target) instances that an edge connects.
size_t count_pairs(const Plan& plan, const PlanEdge& edge) {
  size_t pairs = 0;
  for (const InstanceId sender : plan.node(edge.from).instances)
    for (const InstanceId target : plan.node(edge.to).instances)
      pairs += plan.are_joined(sender, target) ? 1 : 0;
  return pairs;
}

std::string crossing_line(const Plan& plan) {
  size_t crossing = 0;
  for (const auto& edge : plan.edges) crossing += edge.transport == EdgeTransport::kMemory ? 0 : 1;
  return fmt::format("{} of {} edges cross processes; via: how messages are sent\n", crossing,
                     plan.edges.size());
}

std::string trace_line(const TraceSettings& trace) {
  if (!trace.is_on()) return "trace off\n";
  if (trace.level == "ring")
    return fmt::format("trace at level ring: the newest {} of memory, written when the run fails\n",
                       memory_text(static_cast<double>(trace.ring_bytes)));
  return fmt::format("trace at level {}{}: up to {}, {} if the disk is too slow\n", trace.level,
                     trace.level == "power" ? ", on disk every " + to_string(trace.sync_every) : "",
                     memory_text(static_cast<double>(trace.bytes_max)),
                     trace.full == "block" ? "waits" : "leaves a marked gap");
}

}  // namespace

std::string render_plan(const Plan& plan) {
  std::string text = fmt::format("graph {} ({:016x})\n\n", plan.settings.name, plan.graph_hash);
  for (const auto& process : plan.processes) add_process(plan, process, text);
  std::vector<std::vector<std::string>> rows{{"edge", "message", "kind", "via", "record",
                                              "capacity", "bound", "pairs", "structs", "blobs"}};
  for (const auto& edge : plan.edges) {
    const auto& type = *plan.node(edge.from).contract->outputs[edge.output].type;
    const size_t pairs = count_pairs(plan, edge);
    const double structs = static_cast<double>(edge.bound) *
                           static_cast<double>(type.size_in_memory) * static_cast<double>(pairs);
    rows.push_back(
        {edge.name, std::string(type.name),
         !edge.feedback ? "forward" : (edge.latest_wins ? "latest wins" : "feedback"),
         std::string(to_string(edge.transport)), std::string(to_string(edge.record)),
         edge.feedback ? "-" : std::to_string(edge.capacity), std::to_string(edge.bound),
         std::to_string(pairs), memory_text(structs),
         detail::may_lie_beside_body(type.schema)
             ? memory_text(static_cast<double>(edge.bytes_max) * static_cast<double>(pairs))
             : "-"});
  }
  const bool is_placed = plan.processes.size() > 1;
  if (!is_placed)  // no edge crosses processes: every row would say "memory"
    for (auto& row : rows) row.erase(row.begin() + 3);
  text += "\n" + table_text(rows, is_placed ? 5 : 4);
  if (is_placed) text += "\n  " + crossing_line(plan);
  text +=
      "\n  bound: most messages that can wait for one pair of instances\n  structs: all pairs at "
      "their bound, without lists and texts (a message has at most 1 MiB)\n  blobs: bytes_max of "
      "all pairs, for Blobs, arrays above 1 KiB and texts above 16 KiB, which are stored beside a "
      "message\n  record: what the trace keeps of a message\n\n" +
      trace_line(plan.trace);
  return text;
}

std::string render_resolved(const CheckedGraph& graph, bool with_origin) {
  if (graph.plan == nullptr) return {};
  if (!with_origin) return graph.plan->resolved_toml;
  std::vector<std::vector<std::string>> rows;
  for (const auto& value : graph.resolved)
    rows.push_back({fmt::format("{} = {}", value.path, value.value), value.origin});
  // One long edge must not move every origin far to the right.
  constexpr size_t kColumn = 60;
  std::string text;
  for (const auto& row : rows) text += fmt::format("{:<{}}  # {}\n", row[0], kColumn, row[1]);
  return text;
}

Json resolved_json(const CheckedGraph& graph) {
  Json values = Json::array();
  for (const auto& value : graph.resolved)
    values.push_back(Json::object()
                         .set("path", value.path)
                         .set("value", value.value)
                         .set("origin", value.origin));
  Json document = Json::object();
  document.set("schema", "primerl.resolved/1");
  if (graph.plan != nullptr)
    document.set("graph_hash", fmt::format("{:016x}", graph.plan->graph_hash));
  document.set("values", std::move(values));
  return document;
}

}  // namespace primerl
