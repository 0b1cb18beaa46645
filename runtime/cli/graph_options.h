/// What every command that reads a graph file shares: the file, --set, --overlay, --max-steps, and
/// how findings are shown.
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
  int64_t max_steps = 0;  // 0 = what the file says
  bool no_rehearsal = false;
  bool has_run = false;  // in an earlier start: it is neither played nor warned of again

  void declare(Arguments& arguments, bool file_is_required = true);
  /// For commands that rehearse, and look at what a run would open and need before it starts.
  void declare_rehearsal(Arguments& arguments);
};

/// Reads and checks against the full catalog, with every override applied.
CheckedGraph load(const GraphArguments& arguments);

/// `--plugin FILE` of commands that read no graph; may repeat.
struct PluginArguments {
  std::vector<std::string> files;

  void declare(Arguments& arguments);
  /// The program's catalog with what the plugins bring; the error names the first that cannot be
  /// used.
  Result<std::shared_ptr<const Catalog>> catalog() const;
};

/// Plays a checked graph unless --no-rehearsal was given; findings are added to `checked`.
Rehearsal rehearse(const GraphArguments& arguments, CheckedGraph& checked);

/// Holds the plan against the memory of this machine and its control group (machine_memory.h). What
/// does not fit is the finding G049; as an error it removes the plan.
void check_memory_here(CheckedGraph& checked, Severity severity);

/// Shows every finding on stderr; the plan, or null when there were errors.
std::shared_ptr<const Plan> load_or_complain(const GraphArguments& arguments);

/// Whether stderr (or stdout) wants colours.
bool wants_color(int fd);

}  // namespace primerl
