/// What `run` and `sft` share: both run a graph.
#pragma once

#include <string>

#include "runtime/cli/graph_options.h"
#include "runtime/control/run_preparation.h"
#include "runtime/transport/peer_keys.h"

namespace primerl {

struct RunArguments {
  GraphArguments graph;
  RunPlace place;
  bool json = false;
  PeerKeyFiles peer_keys;
  std::string hosts;               // the file that says where agents are; "": everything runs here
  std::string metrics_port = "0";  // "off": nothing is served
};

void declare_run(RunArguments& arguments, Arguments& flags);

/// From checking to the summary; returns an exit code.
int run_graph(const RunArguments& arguments);

}  // namespace primerl
