/// The commands of primerl-worker that repeat a recorded run: `replay` and `bisect`.
#pragma once

#include "runtime/program/command_line.h"

namespace primerl {

Command worker_replay_command();
Command worker_bisect_command();

}  // namespace primerl
