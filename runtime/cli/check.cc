#include <fmt/format.h>
#include <unistd.h>

#include "graph/base/counted.h"
#include "graph/base/suggest.h"
#include "graph/joining.h"
#include "graph/render.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/graph_options.h"
#include "runtime/cli/outside_trial.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"
#include "runtime/rehearsal/shown_prompts.h"

namespace primerl {
namespace {

struct CheckArguments {
  GraphArguments graph;
  std::string tenant;  // a file; empty: the graph alone is checked
  bool json = false;
  bool start = false;
  bool show_prompt = false;
};

std::string_view rehearsal_word(Rehearsal::End end) {
  switch (end) {
    case Rehearsal::End::kPlayed:
      return "played";
    case Rehearsal::End::kLeftOut:
      return "left out";
    case Rehearsal::End::kCutShort:
      return "cut short";
    case Rehearsal::End::kRefused:
      return "refused";
  }
  return "unknown";
}

/// Names what was not started, in one line.
std::string not_started_text(const std::vector<std::string>& pools) {
  if (pools.empty()) return {};
  return fmt::format(
      "note: no process was started for {}; `--start` starts them and plays three "
      "tasks\n",
      join_names(pools));
}

/// Starts what the tenants ask outside. The lines go to `document`, or to stdout if it is null.
/// Returns the exit code.
int start_outside(const Plan& plan, Json* document) {
  const auto tried = try_outside(plan);
  if (!tried.ok()) {
    if (document != nullptr) document->set("ok", false).set("fault", tried.error().text());
    complain("error: {}\n", tried.error().text());
    return kExitBadConfiguration;
  }
  if (document != nullptr) document->set("started", Json::list(*tried));
  for (const std::string& line : *tried)
    if (document == nullptr) print_text(line + "\n");
  return kExitDone;
}

/// Whether the tenant of a file may join the graph, whose own tenants are in it.
int check_tenant(const CheckArguments& arguments) {
  const CheckedGraph graph = load(arguments.graph);
  if (graph.plan == nullptr) {
    if (arguments.json)
      print_json(to_json(graph.diagnostics, graph.sources).set("ok", false));
    else
      complain_text(render(graph.diagnostics, graph.sources, wants_color(STDERR_FILENO)));
    return kExitBadConfiguration;
  }
  const auto present = tenant_tables(graph.plan->resolved_toml);
  const CheckedTenant checked = check_joining_tenant(arguments.tenant, *graph.plan, present,
                                                     arguments.graph.overrides, full_catalog());
  const bool may_join = checked.tenant != nullptr;
  const int code = may_join ? kExitDone : kExitBadConfiguration;
  if (arguments.json) {
    Json document = to_json(checked.diagnostics, checked.sources);
    document.set("ok", may_join);
    if (may_join) document.set("tenant", checked.tenant->name).set("table", checked.table);
    print_json(document);
    return code;
  }
  if (!checked.diagnostics.all().empty())
    complain_text(render(checked.diagnostics, checked.sources, wants_color(STDERR_FILENO)));
  if (may_join)
    print_text(
        fmt::format("{}: ok, tenant '{}' fits graph '{}'; {} of {} slots would have a "
                    "tenant\n",
                    arguments.tenant, checked.tenant->name, graph.plan->settings.name,
                    present.size() + 1, graph.plan->num_slots()));
  return code;
}

int run_check(const CheckArguments& arguments) {
  if (!arguments.tenant.empty()) return check_tenant(arguments);
  CheckedGraph checked = load(arguments.graph);
  check_memory_here(checked, Severity::kError);
  const Rehearsal rehearsal = rehearse(arguments.graph, checked);
  int code = checked.plan == nullptr ? kExitBadConfiguration : kExitDone;
  const auto pools =
      checked.plan == nullptr ? std::vector<std::string>() : outside_pools(*checked.plan);
  if (arguments.json) {
    Json document = to_json(checked.diagnostics, checked.sources);
    document.set("ok", checked.plan != nullptr);
    document.set("rehearsal", rehearsal_word(rehearsal.end));
    if (!pools.empty() && !arguments.start) document.set("not_started", Json::list(pools));
    if (checked.plan != nullptr)
      document.set("graph_hash", fmt::format("{:016x}", checked.plan->graph_hash));
    if (arguments.show_prompt && checked.plan != nullptr) {
      Json prompts = Json::array();
      for (const auto& prompt : shown_prompts(*checked.plan))
        prompts.push_back(prompt_json(prompt));
      document.set("prompts", std::move(prompts));
    }
    if (code == kExitDone && arguments.start) code = start_outside(*checked.plan, &document);
    print_json(document);
    return code;
  }
  if (!checked.diagnostics.all().empty())
    complain_text(render(checked.diagnostics, checked.sources, wants_color(STDERR_FILENO)));
  if (checked.plan != nullptr)
    print_text(fmt::format("{}: ok, {}, {}, {}{}{}\n", arguments.graph.file,
                           counted(checked.plan->nodes.size(), "node"),
                           counted(checked.plan->edges.size(), "edge"), tenants_text(*checked.plan),
                           rehearsal.text.empty() ? "" : "; ", rehearsal.text));
  if (arguments.show_prompt && checked.plan != nullptr)
    for (const auto& prompt : shown_prompts(*checked.plan)) print_text(prompt_text(prompt));
  if (code == kExitDone && arguments.start) return start_outside(*checked.plan, nullptr);
  print_text(not_started_text(pools));
  return code;
}

}  // namespace

Command check_command() {
  auto arguments = std::make_shared<CheckArguments>();
  return {"check", "reports every fault of a graph file; starts nothing without --start",
          "primerl-graph check examples/reverse_text/graph.toml",
          [arguments](Arguments& flags) {
            arguments->graph.declare(flags);
            arguments->graph.declare_rehearsal(flags);
            flags.text(arguments->tenant, "--tenant", "FILE",
                       "checks whether the tenant of this file may join the graph, which needs "
                       "[graph.tenant_limits]; RUN/graph.resolved.toml is the graph of a run");
            flags.flag(arguments->start, "--start",
                       "starts the workers of environments and rewards, plays three tasks and "
                       "stops them");
            flags.flag(arguments->show_prompt, "--show-prompt",
                       "prints the first prompt of each tenant as the policy reads it: text, "
                       "which bytes are the chat template's, token ids");
            flags.flag(arguments->json, "--json", "prints the findings as JSON");
          },
          [arguments] { return run_check(*arguments); }};
}

}  // namespace primerl
