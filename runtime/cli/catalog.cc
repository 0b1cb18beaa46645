#include "runtime/cli/commands.h"

namespace primerl {

std::vector<Command> graph_commands() {
  return {
      run_command(),
      serve_command(),
      tenant_command(),
      ps_command(),
      compare_command(),
      rollouts_command(),
      pause_command(),
      unpause_command(),
      check_command(),
      show_command(),
      explain_command(),
      actors_command(),
      options_command(),
      messages_command(),
      schema_command(),
      init_command(),
      import_command(),
      doctor_command(),
      sft_command(),
      replay_command(),
      bisect_command(),
      eval_command(),
      generate_command(),
      tokenize_command(),
      score_command(),
      trace_command(),
      route_sim_command(),
      model_command(),
      data_command(),
      merge_command(),
      train_step_command(),
      compare_activations_command(),
      agent_command(),
      keys_command(),
      completion_command(),
  };
}

}  // namespace primerl
