/// The actions of `primerl-graph trace` that have their own file; trace.cc lists all actions.
#pragma once

#include "runtime/program/command_line.h"

namespace primerl {

Command why_action();
Command after_action();
Command diff_action();
Command export_action();
Command verify_action();
Command recover_action();
Command pack_action();
Command dump_action();

}  // namespace primerl
