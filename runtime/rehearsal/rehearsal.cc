#include "runtime/rehearsal/rehearsal.h"

#include <algorithm>
#include <exception>

#include "runtime/rehearsal/rehearsal_play.h"
#include "runtime/rehearsal/rehearsal_tasks.h"

namespace primerl {
namespace {

/// Time in whole milliseconds.
std::string clock_text(const RehearsalPlay& play) {
  return to_string(Duration::milliseconds((play.ended - Time()).to_milliseconds()));
}

/// The steps of the tenant with the most steps.
std::string counted_steps(const Plan& staged) {
  int64_t most = 0;
  for (const Tenant& tenant : staged.tenants) most = std::max(most, tenant.max_steps);
  return fmt::format("{} step{}", most, most == 1 ? "" : "s");
}

bool trains(const Plan& plan) {
  return std::any_of(plan.resources.begin(), plan.resources.end(),
                     [](const PlanResource& resource) { return resource.kind == "learner"; });
}

/// "tenant 'a' has taken 0 of 3 steps", for the tenant that is furthest behind.
std::string steps_text(const Plan& staged, const RehearsalPlay& play) {
  size_t last = 0;
  for (size_t i = 0; i < staged.tenants.size(); ++i)
    if (staged.tenants[i].max_steps - play.steps[i] >
        staged.tenants[last].max_steps - play.steps[last])
      last = i;
  return fmt::format("tenant '{}' has taken {} of {} steps", staged.tenants[last].name,
                     play.steps[last], staged.tenants[last].max_steps);
}

/// An edge that the graph does not have, between an output and an input of the same message type.
struct MissingEdge {
  std::string from_node;
  std::string path;  // "prefill.load -> router.load"
  bool is_feedback = true;
};

bool is_joined(const Plan& plan, const std::function<bool(const PlanEdge&)>& which) {
  return std::any_of(plan.edges.begin(), plan.edges.end(), which);
}

/// Possible edges between ports of one message type, if at least one of the two is not connected.
std::vector<MissingEdge> missing_edges(const Plan& plan) {
  std::vector<MissingEdge> missing;
  for (uint32_t from = 0; from < plan.nodes.size(); ++from)
    for (uint32_t output = 0; output < plan.nodes[from].contract->outputs.size(); ++output)
      for (uint32_t to = 0; to < plan.nodes.size(); ++to)
        for (uint32_t input = 0; input < plan.nodes[to].contract->inputs.size(); ++input) {
          const auto& sent = plan.nodes[from].contract->outputs[output];
          const auto& taken = plan.nodes[to].contract->inputs[input];
          if (sent.type != taken.type || from == to) continue;
          const bool is_sent = is_joined(plan, [&](const PlanEdge& edge) {
            return edge.from == NodeId(from) && edge.output == output;
          });
          const bool is_taken = is_joined(plan, [&](const PlanEdge& edge) {
            return edge.to == NodeId(to) && edge.input == input;
          });
          if (is_sent && is_taken) continue;
          missing.push_back(
              {plan.nodes[from].name, fmt::format("{}.{} -> {}.{}", plan.nodes[from].name,
                                                  sent.name, plan.nodes[to].name, taken.name)});
        }
  return missing;
}

/// The graph's resolved text with one more feedback edge; empty when the text has no feedback list.
std::string with_edge(const Plan& plan, const std::string& path) {
  constexpr std::string_view kList = "\nfeedback = [\n";
  std::string text = plan.resolved_toml;
  const size_t at = text.find(kList);
  if (at == std::string::npos) return {};
  text.insert(at + kList.size(), fmt::format("  \"{}\",\n", path));
  return text;
}

/// The missing edge that makes the graph run; null if no single edge does.
const MissingEdge* find_missing_edge(const Plan& plan, const std::vector<MissingEdge>& missing,
                                     const Catalog& catalog) {
  int num_tried = 0;
  for (const MissingEdge& edge : missing) {
    if (++num_tried > kRehearsalTrialsMax) break;
    const std::string text = with_edge(plan, edge.path);
    if (text.empty()) break;
    const CheckedGraph tried = load_graph_text(text, "trial", "/", {}, catalog);
    if (tried.plan == nullptr) continue;
    const auto stage = make_rehearsal_stage(*tried.plan, kRehearsalSteps);
    const auto play = play_rehearsal(stage, kRehearsalWorkMax);
    if (play.end == RehearsalPlay::End::kFinished && play.complaints.empty()) return &edge;
  }
  return nullptr;
}

Span span_of(const CheckedGraph& checked, const std::string& table) {
  const auto found = checked.tables.find(table);
  return found != checked.tables.end() ? found->second : checked.tables.at("graph");
}

/// Adds the lines of the stall table, without its trailing newline.
void add_lines(const std::string& text, Diagnostic& finding) {
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    finding.note(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

void report_still(CheckedGraph& checked, const Plan& staged, const RehearsalPlay& play,
                  const Catalog& catalog) {
  const auto missing = missing_edges(*checked.plan);
  const MissingEdge* cure = find_missing_edge(*checked.plan, missing, catalog);
  const std::string table = cure != nullptr              ? "node." + cure->from_node
                            : staged.tenants.size() == 1 ? "tenant." + staged.tenants[0].name
                                                         : "graph";
  Diagnostic& finding = checked.diagnostics.error(
      "G080", span_of(checked, table), "the graph makes no progress{}: {}",
      play.is_draining ? " while it drains" : "", steps_text(staged, play));
  finding.note(fmt::format("played on a virtual clock: after {} of it no message moved any more",
                           clock_text(play)));
  add_lines(play.stall.text(), finding);
  for (const auto& complaint : play.complaints) finding.note(complaint);
  if (!play.rollout_fault.empty()) finding.note("rollouts failed: " + play.rollout_fault);
  if (cure != nullptr)
    finding.suggest(
        fmt::format("add the feedback edge \"{}\": with it the graph runs", cure->path));
  else if (!missing.empty())
    finding.note(fmt::format("not connected: {}", missing.front().path));
}

void report_failed(CheckedGraph& checked, const Plan& staged, const RehearsalPlay& play) {
  const std::string table =
      staged.tenants.size() == 1 ? "tenant." + staged.tenants[0].name : "graph";
  Diagnostic& finding = checked.diagnostics.error("G081", span_of(checked, table),
                                                  "the run would fail: {}", play.why);
  finding.note(fmt::format("played on a virtual clock: {}", steps_text(staged, play)));
  for (const auto& complaint : play.complaints) finding.note(complaint);
  if (!play.rollout_fault.empty()) finding.note("rollouts failed: " + play.rollout_fault);
}

void report_complaints(CheckedGraph& checked, const RehearsalPlay& play) {
  Diagnostic& finding = checked.diagnostics.warning("G082", span_of(checked, "graph"),
                                                    "a node complains when the graph is played");
  for (const auto& complaint : play.complaints) finding.note(complaint);
}

Rehearsal refused(CheckedGraph& checked) {
  checked.diagnostics.sort();
  checked.plan = nullptr;
  return {Rehearsal::End::kRefused, "refused by its rehearsal"};
}

Rehearsal play(CheckedGraph& checked, const Catalog& catalog) {
  if (checked.plan == nullptr) return {Rehearsal::End::kLeftOut, "there is no plan to play"};
  if (checked.plan->tenants.empty() && checked.plan->settings.tenant_limits.are_set())
    return {Rehearsal::End::kLeftOut, "not rehearsed: no slot has a tenant"};
  if (checked.plan->tenants.empty() || !trains(*checked.plan))
    return {Rehearsal::End::kLeftOut, "not rehearsed: nothing in the graph trains"};
  check_tasks(checked);
  if (checked.diagnostics.has_errors()) return refused(checked);
  const auto stage = make_rehearsal_stage(*checked.plan, kRehearsalSteps);
  const auto played = play_rehearsal(stage, kRehearsalWorkMax);
  switch (played.end) {
    case RehearsalPlay::End::kStill:
      report_still(checked, *stage.plan, played, catalog);
      break;
    case RehearsalPlay::End::kFailed:
      report_failed(checked, *stage.plan, played);
      break;
    case RehearsalPlay::End::kCutShort:
      return {Rehearsal::End::kCutShort,
              fmt::format("rehearsal cut short after {} events: {}", played.num_events,
                          steps_text(*stage.plan, played))};
    case RehearsalPlay::End::kFinished:
      if (!played.complaints.empty()) report_complaints(checked, played);
      checked.diagnostics.sort();
      return {Rehearsal::End::kPlayed, fmt::format("rehearsed {}", counted_steps(*stage.plan))};
  }
  return refused(checked);
}

}  // namespace

Rehearsal rehearse(CheckedGraph& checked, const Catalog& catalog) {
  try {
    return play(checked, catalog);
  } catch (const std::exception& exception) {
    // The program's own code throws nothing, so this came from a contract or an environment of a
    // plugin.
    if (checked.plan->catalog->plugins.empty()) throw;
    checked.diagnostics.error("G081", span_of(checked, "graph"),
                              "the run would fail: an exception left a plugin's code: {}",
                              exception.what());
    return refused(checked);
  }
}

}  // namespace primerl
