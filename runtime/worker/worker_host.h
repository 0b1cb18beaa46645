/// `primerl-worker host`: one process of a run, started by primerl-graph and led over its control
/// channel. Rebuilds the Plan from graph.resolved.toml and runs its groups; heartbeats and log
/// lines go up; start, drain and stop come down. Ends with RunEnded, or dies with its words on
/// stderr.
#pragma once

#include "runtime/program/command_line.h"

namespace primerl {

Command host_command();

}  // namespace primerl
