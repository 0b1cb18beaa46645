/// primerl-graph: checks, shows and runs graphs. The control plane: it has no tensors and does not
/// link torch.
#include "runtime/cli/commands.h"

int main(int argc, char** argv) {
  return primerl::run_command_line("primerl-graph",
                                   "dataflow graphs for asynchronous RL of language models",
                                   primerl::graph_commands(), argc, argv);
}
