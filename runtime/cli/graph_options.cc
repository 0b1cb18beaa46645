#include "runtime/cli/graph_options.h"

#include <unistd.h>

#include <filesystem>

#include "graph/plan_memory.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/monitor/status_line.h"
#include "runtime/program/output.h"

namespace primerl {

void GraphArguments::declare(Arguments& arguments, bool file_is_required) {
  declare_file(arguments, file_is_required);
  arguments.integer(max_steps, "--max-steps", "N", "ends the run after N steps of every tenant", 1,
                    INT64_MAX);
}

void GraphArguments::declare_file(Arguments& arguments, bool file_is_required) {
  arguments.positional(file, "GRAPH", "the graph file", file_is_required);
  arguments.texts(overrides.sets, "--set", "KEY=VALUE",
                  "sets one value, as in --set node.rollout.max_inflight=32; may repeat");
  arguments.texts(overrides.overlays, "--overlay", "FILE",
                  "a graph file whose values win over the first one's; may repeat");
}

void GraphArguments::declare_rehearsal(Arguments& arguments) {
  overrides.for_run = true;
  arguments.flag(no_rehearsal, "--no-rehearsal",
                 "skips the rehearsal of the graph on a virtual clock");
}

void PluginArguments::declare(Arguments& arguments) {
  arguments.texts(files, "--plugin", "FILE",
                  "a shared library, as in [graph] plugins: adds what it brings; may repeat");
}

Result<std::shared_ptr<const Catalog>> PluginArguments::catalog() const {
  auto catalog = std::make_shared<Catalog>(full_catalog());
  std::vector<std::string> paths;
  for (const auto& file : files)
    paths.push_back(file.empty() ? file : std::filesystem::absolute(file).string());
  auto faults = catalog->add_plugins(paths, *catalog);
  if (faults.empty()) return std::shared_ptr<const Catalog>(std::move(catalog));
  return std::move(faults.front().error)
      .while_doing(fmt::format("--plugin '{}'", files[faults.front().file]));
}

Rehearsal rehearse(const GraphArguments& arguments, CheckedGraph& checked) {
  if (arguments.no_rehearsal) return {Rehearsal::End::kLeftOut, {}};
  return rehearse(checked, full_catalog());
}

CheckedGraph load(const GraphArguments& arguments) {
  Overrides overrides = arguments.overrides;
  if (arguments.max_steps == 0) return load_graph(arguments.file, overrides, full_catalog());
  // The tenants are known only after a first read, because the flag stands for one --set per
  // tenant.
  overrides.for_run = false;
  const CheckedGraph checked = load_graph(arguments.file, overrides, full_catalog());
  overrides.for_run = arguments.overrides.for_run;
  if (checked.plan == nullptr) return load_graph(arguments.file, overrides, full_catalog());
  for (const auto& tenant : checked.plan->tenants)
    overrides.sets.push_back(
        fmt::format("tenant.{}.max_steps={}", tenant.name, arguments.max_steps));
  return load_graph(arguments.file, overrides, full_catalog());
}

void check_memory_here(CheckedGraph& checked, Severity severity) {
  if (checked.plan == nullptr) return;
  const auto shortage = memory_shortage(*checked.plan, "", memory_limit());
  if (!shortage) return;
  const auto table = checked.tables.find("resource." + shortage->resource);
  const Span span = table != checked.tables.end() ? table->second : checked.tables.at("graph");
  Diagnostic& finding = checked.diagnostics.add(severity, "G049", span, shortage->fault.message());
  for (const auto& note : shortage->fault.notes()) finding.note(note);
  checked.diagnostics.sort();
  if (severity == Severity::kError) checked.plan = nullptr;
}

std::shared_ptr<const Plan> load_or_complain(const GraphArguments& arguments) {
  CheckedGraph checked = load(arguments);
  if (arguments.has_run && checked.plan != nullptr) return checked.plan;
  check_memory_here(checked, Severity::kError);
  const Rehearsal rehearsal = rehearse(arguments, checked);
  if (rehearsal.end == Rehearsal::End::kCutShort) complain("note: {}\n", rehearsal.text);
  if (!checked.diagnostics.all().empty())
    complain_text(render(checked.diagnostics, checked.sources, wants_color(STDERR_FILENO)));
  return checked.plan;
}

bool wants_color(int fd) { return terminal_of(fd).color; }

}  // namespace primerl
