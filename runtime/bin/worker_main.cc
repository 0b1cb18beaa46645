/// primerl-worker: runs the nodes of a graph, and the commands that need a model. Users start it
/// through primerl-graph.
#include "runtime/worker/worker_host.h"
#include "runtime/worker/worker_models.h"
#include "runtime/worker/worker_remake.h"
#include "runtime/worker/worker_replay.h"

int main(int argc, char** argv) {
  return primerl::run_command_line(
      "primerl-worker", "hosts the nodes of a graph; started by primerl-graph",
      {primerl::host_command(), primerl::worker_generate_command(), primerl::worker_score_command(),
       primerl::worker_train_step_command(), primerl::worker_replay_command(),
       primerl::worker_bisect_command(), primerl::remake_command(), primerl::backends_command(),
       primerl::device_command(), primerl::devices_command()},
      argc, argv);
}
