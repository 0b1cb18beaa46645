/// The subcommands, one .cc each. Those of primerl-graph print results on stdout and everything
/// else on stderr; each returns an exit code (exit_code.h). catalog.cc lists them in the order of
/// --help.
#pragma once

#include <vector>

#include "runtime/program/command_line.h"

namespace primerl {

Command actors_command();
Command agent_command();
Command bisect_command();  // executes primerl-worker
Command check_command();
Command compare_command();
Command compare_activations_command();
Command completion_command();
Command data_command();
Command doctor_command();
Command eval_command();
Command explain_command();
Command tokenize_command();
Command generate_command();  // executes primerl-worker
Command import_command();
Command init_command();
Command keys_command();
Command messages_command();
Command model_command();
Command merge_command();
Command options_command();
Command pause_command();
Command ps_command();
Command replay_command();  // executes primerl-worker
Command rollouts_command();
Command route_sim_command();
Command run_command();
Command schema_command();
Command score_command();  // executes primerl-worker
Command serve_command();
Command sft_command();
Command show_command();
Command tenant_command();
Command trace_command();
Command train_step_command();  // executes primerl-worker
Command unpause_command();

/// All of primerl-graph.
std::vector<Command> graph_commands();

}  // namespace primerl
