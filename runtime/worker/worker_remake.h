/// The command of primerl-worker that makes a checkpoint again, for `primerl-graph run --fork`.
#pragma once

#include "runtime/program/command_line.h"

namespace primerl {

Command remake_command();

}  // namespace primerl
