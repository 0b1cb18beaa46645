#include <fmt/format.h>
#include <unistd.h>

#include "graph/plan_memory.h"
#include "graph/render.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/graph_options.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

struct ShowArguments {
  GraphArguments graph;
  std::string format = "text";
  bool plan = false;
  bool resolved = false;
  bool origin = false;
  bool json = false;
};

void show_picture(const Plan& plan, const std::string& format) {
  if (format == "mermaid")
    print_text(render_mermaid(plan));
  else if (format == "dot")
    print_text(render_dot(plan));
  else if (format == "svg")
    print_text(render_svg(plan));
  else if (format == "json")
    print_json(render_json(plan));
  else
    print_text(render_text(plan));
}

/// The memory of all processes on this machine, and the available memory; "" if no memory is
/// counted.
std::string memory_line(const Plan& plan) {
  const double bytes = memory_on(plan, "", true);
  const MemoryLimit limit = memory_limit();
  if (bytes == 0 || limit.bytes == 0) return "";
  return fmt::format("\nmemory of all processes here: {} of {}\n", memory_text(bytes),
                     limit.text());
}

int run_show(const ShowArguments& arguments) {
  CheckedGraph checked = load(arguments.graph);
  if (arguments.plan) check_memory_here(checked, Severity::kWarning);
  if (!checked.diagnostics.all().empty())
    complain_text(render(checked.diagnostics, checked.sources, wants_color(STDERR_FILENO)));
  if (checked.plan == nullptr) return kExitBadConfiguration;
  const std::string format = arguments.json ? "json" : arguments.format;
  if (arguments.resolved || arguments.origin) {
    if (format == "json")
      print_json(resolved_json(checked));
    else
      print_text(render_resolved(checked, arguments.origin));
  } else if (arguments.plan && format != "json") {
    print_text(render_plan(*checked.plan) + memory_line(*checked.plan));
  } else {
    show_picture(*checked.plan, format);
  }
  return kExitDone;
}

}  // namespace

Command show_command() {
  auto arguments = std::make_shared<ShowArguments>();
  return {"show", "draws a graph, or shows its plan or its resolved values",
          "primerl-graph show examples/reverse_text/graph.toml --format mermaid",
          [arguments](Arguments& flags) {
            arguments->graph.declare(flags);
            flags.choice(arguments->format, "--format", {"text", "mermaid", "dot", "svg", "json"},
                         "what to draw with");
            flags.flag(arguments->plan, "--plan",
                       "shows processes, threads and the bound of every edge");
            flags.flag(arguments->resolved, "--resolved",
                       "shows every value, defaults and overrides applied");
            flags.flag(arguments->origin, "--origin",
                       "with --resolved: the file, line or flag each value came from");
            flags.flag(arguments->json, "--json", "the same as --format json");
          },
          [arguments] { return run_show(*arguments); }};
}

}  // namespace primerl
