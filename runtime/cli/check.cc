#include <fmt/format.h>
#include <unistd.h>

#include "graph/base/counted.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/graph_options.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

struct CheckArguments {
  GraphArguments graph;
  bool json = false;
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

int run_check(const CheckArguments& arguments) {
  CheckedGraph checked = load(arguments.graph);
  check_memory_here(checked, Severity::kError);
  const Rehearsal rehearsal = rehearse(arguments.graph, checked);
  const int code = checked.plan == nullptr ? kExitBadConfiguration : kExitDone;
  if (arguments.json) {
    Json document = to_json(checked.diagnostics, checked.sources);
    document.set("ok", checked.plan != nullptr);
    document.set("rehearsal", rehearsal_word(rehearsal.end));
    if (checked.plan != nullptr)
      document.set("graph_hash", fmt::format("{:016x}", checked.plan->graph_hash));
    print_json(document);
    return code;
  }
  if (!checked.diagnostics.all().empty())
    complain_text(render(checked.diagnostics, checked.sources, wants_color(STDERR_FILENO)));
  if (checked.plan != nullptr)
    print_text(fmt::format("{}: ok, {}, {}, {}{}{}\n", arguments.graph.file,
                           counted(checked.plan->nodes.size(), "node"),
                           counted(checked.plan->edges.size(), "edge"),
                           counted(checked.plan->tenants.size(), "tenant"),
                           rehearsal.text.empty() ? "" : "; ", rehearsal.text));
  return code;
}

}  // namespace

Command check_command() {
  auto arguments = std::make_shared<CheckArguments>();
  return {"check", "reports every fault of a graph file; starts nothing",
          "primerl-graph check examples/reverse_text/graph.toml",
          [arguments](Arguments& flags) {
            arguments->graph.declare(flags);
            arguments->graph.declare_rehearsal(flags);
            flags.flag(arguments->json, "--json", "prints the findings as JSON");
          },
          [arguments] { return run_check(*arguments); }};
}

}  // namespace primerl
