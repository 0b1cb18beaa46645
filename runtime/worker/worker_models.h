/// `primerl-worker generate | score | train-step | backends | device`: one model, no graph. The
/// engine and the learner are the ones a run uses, so that what these print is what training sees.
#pragma once

#include "runtime/program/command_line.h"

namespace primerl {

Command worker_generate_command();
Command worker_score_command();
Command worker_train_step_command();
/// Says why libtorch's backends cannot compute on a device, or nothing; `doctor` asks.
Command device_command();
/// Says why the devices of this machine are not enough for a graph, or nothing; `run` asks.
Command devices_command();
/// Lists the (kind, backend) pairs of this build; `doctor` asks.
Command backends_command();

}  // namespace primerl
