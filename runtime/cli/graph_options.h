/// The common part of all commands that read a graph file: the file, --set, --overlay, --max-steps,
/// and how findings are shown.
#pragma once

#include <memory>
#include <string>

#include "graph/plan.h"
#include "runtime/program/command_line.h"
#include "runtime/rehearsal/rehearsal.h"

namespace primerl {

struct GraphArguments {
  std::string file;
  Overrides overrides;
  int64_t max_steps = 0;  // 0: the value in the file
  bool no_rehearsal = false;
  bool has_run = false;  // it ran in an earlier start: no rehearsal and no repeated warnings

  void declare(Arguments& arguments, bool file_is_required = true);
  /// The same without --max-steps, for commands that do not train.
  void declare_file(Arguments& arguments, bool file_is_required = true);
  /// For commands that rehearse, and that check before a start what a run would open and need.
  void declare_rehearsal(Arguments& arguments);
};

/// Reads the graph and checks it against the full catalog, with every override applied.
CheckedGraph load(const GraphArguments& arguments);

/// `--plugin FILE` for commands that read no graph; may be repeated.
struct PluginArguments {
  std::vector<std::string> files;

  void declare(Arguments& arguments);
  /// The program's catalog with the contents of the plugins; the error names the first plugin that
  /// cannot be used.
  Result<std::shared_ptr<const Catalog>> catalog() const;
};

/// Rehearses a checked graph unless --no-rehearsal was given; findings are added to `checked`.
Rehearsal rehearse(const GraphArguments& arguments, CheckedGraph& checked);

/// Checks the plan against the memory of this machine and its control group (machine_memory.h). Too
/// little memory is the finding G049; as an error it removes the plan.
void check_memory_here(CheckedGraph& checked, Severity severity);

/// Shows every finding on stderr. Returns the plan, or null when there were errors.
std::shared_ptr<const Plan> load_or_complain(const GraphArguments& arguments);

/// Whether stderr (or stdout) should have colours.
bool wants_color(int fd);

}  // namespace primerl
