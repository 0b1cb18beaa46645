/// What every command that reads a graph file shares: the file, --set, --overlay, --max-steps, and
/// how findings are shown.
#pragma once

#include <memory>
#include <string>

#include "graph/plan.h"
#include "runtime/bin/command_line.h"

namespace primerl {

struct GraphArguments {
  std::string file;
  Overrides overrides;
  int64_t max_steps = 0;  // 0 = what the file says

  void declare(Arguments& arguments, bool file_is_required = true);
};

/// Reads and checks against the full catalog, with every override applied.
CheckedGraph load(const GraphArguments& arguments);

/// Shows every finding on stderr; the plan, or null when there were errors.
std::shared_ptr<const Plan> load_or_complain(const GraphArguments& arguments);

/// Whether stderr (or stdout) wants colours.
bool wants_color(int fd);

}  // namespace primerl
