/// `primerl-worker generate | score | train-step | backends | device`: one model, no graph. The
/// engine and the learner are the same as in a run, so these commands print what training computes.
#pragma once

#include "runtime/program/command_line.h"

namespace primerl {

Command worker_generate_command();
Command worker_score_command();
Command worker_train_step_command();
/// Prints why libtorch's backends cannot compute on a device, or nothing. Called by `doctor`.
Command device_command();
/// Prints why the devices of this machine are not enough for a graph, or nothing. Called by `run`.
Command devices_command();
/// Lists the (kind, backend) pairs of this build. Called by `doctor`.
Command backends_command();

}  // namespace primerl
