/// `primerl-worker host`: one process of a run, started by primerl-graph and controlled over its
/// control channel. Rebuilds the Plan from graph.resolved.toml and runs its actor groups. Sends
/// heartbeats and log lines; receives start, drain and stop. Ends with RunEnded, or with an error
/// on stderr.
#pragma once

#include "runtime/program/command_line.h"

namespace primerl {

Command host_command();

}  // namespace primerl
