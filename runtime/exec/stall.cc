#include "runtime/exec/stall.h"

#include <algorithm>

#include "runtime/exec/handler_watch.h"

namespace primerl {
namespace {

/// For each group: the groups that it waits for, ascending.
class WaitGraph {
 public:
  WaitGraph(const Plan& plan, const Wiring& wiring, std::span<const GroupView> views)
      : waits_for_(plan.groups.size()), is_stuck_(plan.groups.size(), false) {
    for (const GroupView& view : views) add(wiring, view);
  }

  /// The first cycle that contains a stuck group; starts with its lowest group.
  std::vector<uint32_t> cycle() const {
    for (uint32_t start = 0; start < waits_for_.size(); ++start) {
      std::vector<uint32_t> path{start};
      std::vector<bool> seen(waits_for_.size(), false);
      if (is_stuck_[start] && walk(start, path, seen)) return lowest_first(std::move(path));
    }
    return {};
  }

 private:
  void add(const Wiring& wiring, const GroupView& view) {
    auto& waits = waits_for_[view.group.index()];
    for (LinkId id : view.full) {
      const GroupId target = wiring.links[id.index()].target_group;
      if (target != view.group) waits.push_back(target.value);
    }
    is_stuck_[view.group.index()] = !waits.empty() || !view.paused.empty();
    if (waits.empty() && !view.is_running && !view.is_ready) {
      for (LinkId id : wiring.groups[view.group.index()].in) {
        if (std::find(view.paused.begin(), view.paused.end(), id) != view.paused.end()) continue;
        const GroupId sender = wiring.links[id.index()].sender_group;
        if (sender != view.group) waits.push_back(sender.value);
      }
    }
    std::sort(waits.begin(), waits.end());
    waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
  }

  bool walk(uint32_t start, std::vector<uint32_t>& path, std::vector<bool>& seen) const {
    for (uint32_t next : waits_for_[path.back()]) {
      if (next == start) return true;
      if (seen[next]) continue;
      seen[next] = true;
      path.push_back(next);
      if (walk(start, path, seen)) return true;
      path.pop_back();
    }
    return false;
  }

  static std::vector<uint32_t> lowest_first(std::vector<uint32_t> path) {
    std::rotate(path.begin(), std::min_element(path.begin(), path.end()), path.end());
    return path;
  }

  std::vector<std::vector<uint32_t>> waits_for_;
  std::vector<bool> is_stuck_;
};

/// For example "decode (inference#1)". The process is named only if the run has several.
std::string full_name(const Plan& plan, GroupId group) {
  const PlanGroup& planned = plan.group(group);
  if (plan.processes.size() < 2) return planned.name;
  return fmt::format("{} ({})", planned.name, plan.process(planned.process).name);
}

std::string names_of(const Plan& plan, const Wiring& wiring, const std::vector<LinkId>& links,
                     bool with_capacity) {
  std::string text;
  for (LinkId id : links) {
    const PlanEdge& edge = plan.edge(wiring.links[id.index()].edge);
    if (!text.empty()) text += ", ";
    text += with_capacity ? fmt::format("{} ({})", edge.name, edge.capacity) : edge.name;
  }
  return text;
}

}  // namespace

StallReport make_stall_report(const Plan& plan, const Wiring& wiring,
                              std::span<const GroupView> views, Time now) {
  StallReport report;
  for (const GroupView& view : views) {
    if (view.num_waiting == 0 && view.full.empty() && !view.is_running && view.is_idle) continue;
    StalledGroup stalled;
    stalled.name = plan.group(view.group).name;
    if (plan.processes.size() > 1)
      stalled.process = plan.process(plan.group(view.group).process).name;
    stalled.num_waiting = view.num_waiting;
    stalled.full_edges = names_of(plan, wiring, view.full, true);
    stalled.paused_edges = names_of(plan, wiring, view.paused, false);
    if (view.num_waiting > 0) stalled.oldest = now - view.oldest_arrival;
    if (view.is_running) {
      const auto since = rounded_text(now - view.running_since);
      stalled.handling = view.handling.is_none()
                             ? fmt::format("work for {}", since)
                             : fmt::format("{}: {} for {}", plan.instance(view.handling).name,
                                           view.handling_type == nullptr ? std::string_view("timer")
                                                                         : view.handling_type->name,
                                           since);
    }
    report.groups.push_back(std::move(stalled));
  }
  for (uint32_t group : WaitGraph(plan, wiring, views).cycle())
    report.wait_cycle.push_back(full_name(plan, GroupId(group)));
  return report;
}

GroupReport to_report(const GroupView& view, Time now) {
  GroupReport report;
  report.group = view.group.value;
  report.num_steps = view.num_steps;
  report.busy_ns = static_cast<uint64_t>(view.busy.to_nanoseconds());
  report.num_waiting = view.num_waiting;
  if (view.num_waiting > 0) report.oldest_ns = (now - view.oldest_arrival).to_nanoseconds();
  report.is_idle = view.is_idle;
  report.is_ready = view.is_ready;
  report.is_running = view.is_running;
  report.handling = view.handling.value;
  if (view.is_running) report.running_ns = (now - view.running_since).to_nanoseconds();
  if (view.handling_type != nullptr) report.handling_type = view.handling_type->name;
  report.handling_kind = static_cast<uint8_t>(view.handling_kind);
  report.handling_link = view.handling_link;
  report.handling_sequence = view.handling_sequence;
  for (const LinkId link : view.full) report.full.push_back(link.value);
  for (const LinkId link : view.paused) report.paused.push_back(link.value);
  return report;
}

std::optional<GroupView> to_view(const Plan& plan, const Wiring& wiring, const GroupReport& report,
                                 Time now) {
  const auto is_link = [&](uint32_t link) { return link < wiring.links.size(); };
  if (report.group >= plan.groups.size() ||
      !std::all_of(report.full.begin(), report.full.end(), is_link) ||
      !std::all_of(report.paused.begin(), report.paused.end(), is_link))
    return std::nullopt;
  GroupView view;
  view.group = GroupId(report.group);
  view.num_steps = report.num_steps;
  view.busy = Duration::nanoseconds(static_cast<int64_t>(report.busy_ns));
  view.num_waiting = report.num_waiting;
  view.oldest_arrival = now + Duration::nanoseconds(-report.oldest_ns);
  view.is_idle = report.is_idle;
  view.is_ready = report.is_ready;
  view.is_running = report.is_running;
  view.running_since = now + Duration::nanoseconds(-report.running_ns);
  view.handling_kind =
      static_cast<StepKind>(std::min<uint8_t>(report.handling_kind, kNumStepKinds - 1));
  view.handling_link = report.handling_link;
  view.handling_sequence = report.handling_sequence;
  if (report.handling < plan.instances.size()) {
    view.handling = InstanceId(report.handling);
    for (const InputPort& port : plan.contract_of(view.handling).inputs)
      if (port.type->name == report.handling_type) view.handling_type = port.type;
  }
  for (const uint32_t link : report.full) view.full.push_back(LinkId(link));
  for (const uint32_t link : report.paused) view.paused.push_back(LinkId(link));
  return view;
}

std::optional<uint32_t> input_for(const Plan& plan, InstanceId instance, const MessageType& type,
                                  TenantSlot tenant) {
  const TenantSlot own = plan.instance(instance).tenant;
  if ((!tenant.is_none() && own != tenant)) return std::nullopt;
  const auto& inputs = plan.contract_of(instance).inputs;
  const auto found = std::find_if(inputs.begin(), inputs.end(),
                                  [&type](const InputPort& port) { return port.type == &type; });
  if (found == inputs.end()) return std::nullopt;
  return static_cast<uint32_t>(found - inputs.begin());
}

Status check_slot(const Plan& plan, TenantSlot slot) {
  if (!plan.settings.tenant_limits.are_set() && plan.free_slots.empty())
    return error(Code::kInvalid, "the tenants of graph '{}' do not change", plan.settings.name)
        .note("a graph with [graph.tenant_limits] has slots for tenants that join");
  if (!slot.is_none() && slot.index() < plan.num_slots()) return ok();
  return error(Code::kInvalid, "tenant slot {} does not exist, the graph has {}", slot.value,
               plan.num_slots());
}

TenantSlot counted_tenant(const Plan& plan, GroupId group) {
  if (plan.layout_tenants() < 2 && plan.num_slots() < 2) return {};
  return plan.instance(plan.group(group).instances.front()).tenant;
}

Error why_set_aside(const Plan& plan, const SetAside& tenants) {
  constexpr std::string_view kNote = "\n   ";  // before each note of Error::text()
  std::vector<std::string> lines;
  for (const auto& [tenant, why] : tenants) {
    std::string_view rest = why;
    size_t end = rest.find(kNote);
    lines.push_back(fmt::format("tenant '{}' was set aside: {}", plan.in_slot(tenant).name,
                                rest.substr(0, end)));
    while (end != std::string_view::npos) {
      rest.remove_prefix(end + kNote.size());
      end = rest.find(kNote);
      lines.emplace_back(rest.substr(0, end));
    }
  }
  Error all = error(Code::kInvalid, "{}", lines.front());
  for (size_t i = 1; i < lines.size(); ++i) (void)std::move(all).note(lines[i]);
  return all;
}

std::string StallReport::text() const {
  if (groups.empty()) return "every node is idle\n";
  size_t width = 4, process_width = 0;
  for (const auto& group : groups) {
    width = std::max(width, group.name.size());
    process_width = std::max(process_width, group.process.size());
  }
  if (process_width > 0)
    process_width = std::max(process_width, std::string_view("process").size());
  const auto process_column = [process_width](std::string_view process) {
    return process_width == 0 ? std::string() : fmt::format("{:<{}}  ", process, process_width);
  };
  std::string text = fmt::format("{}{:<{}}  {:>7}  {:>8}  {}\n", process_column("process"), "node",
                                 width, "waiting", "oldest", "blocked on");
  for (const auto& group : groups) {
    std::string at = group.handling;
    const auto add = [&](std::string_view what, const std::string& edges) {
      if (!edges.empty()) at += fmt::format("{}{}: {}", at.empty() ? "" : "; ", what, edges);
    };
    add("full", group.full_edges);
    add("paused", group.paused_edges);
    const auto oldest = group.num_waiting == 0 ? std::string("-") : rounded_text(group.oldest);
    text += fmt::format("{}{:<{}}  {:>7}  {:>8}  {}\n", process_column(group.process), group.name,
                        width, group.num_waiting, oldest, at.empty() ? "-" : at);
  }
  if (wait_cycle.empty()) return text;
  text += "wait cycle: ";
  for (const auto& name : wait_cycle) text += name + " -> ";
  return text + wait_cycle.front() + "\n";
}

}  // namespace primerl
