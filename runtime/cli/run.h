/// The common part of `run`, `serve` and `sft`: all run a graph.
#pragma once

#include <functional>
#include <string>

#include "runtime/cli/control_options.h"
#include "runtime/cli/graph_options.h"
#include "runtime/control/run_preparation.h"
#include "runtime/control/run_session.h"
#include "runtime/transport/peer_keys.h"

namespace primerl {

struct RunArguments {
  GraphArguments graph;
  RunPlace place;
  bool json = false;
  bool serves = false;       // tenants come and go, and a person ends the run
  ControlArguments control;  // of a run that is served
  PeerKeyFiles peer_keys;
  std::string hosts;               // the file that lists the agents; "": everything runs on this
                                   // machine
  std::string metrics_port = "0";  // "off": no HTTP server
  /// Called at the end instead of the summary; returns the exit code. Empty = the summary.
  std::function<int(const Plan& plan, const RunFolder& folder, const RunResult& result)> report =
      {};
};

void declare_run(RunArguments& arguments, Arguments& flags);

/// From the check of the graph to the summary; returns an exit code.
int run_graph(const RunArguments& arguments);

}  // namespace primerl
