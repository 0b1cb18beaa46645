#include "runtime/cli/commands.h"
#include "runtime/cli/run.h"

namespace primerl {

/// `run` for a graph with slots: tenants join and leave by `tenant`, and a person ends the run.
Command serve_command() {
  auto arguments = std::make_shared<RunArguments>();
  arguments->serves = true;
  return {"serve", "serves a graph with slots: tenants join and leave until Ctrl-C",
          "primerl-graph serve examples/hosted/graph.toml",
          [arguments](Arguments& flags) {
            declare_run(*arguments, flags);
            arguments->control.declare(flags);
          },
          [arguments] { return run_graph(*arguments); }};
}

}  // namespace primerl
