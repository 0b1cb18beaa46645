/// The meaning of a program's exit code; documented, stable, the same for every command.
#pragma once

namespace primerl {

enum ExitCode : int {
  kExitDone = 0,
  kExitFailed = 1,            // the run (or a check of `doctor`) failed
  kExitBadConfiguration = 2,  // a graph, model folder or other input file is wrong
  kExitBadCommandLine = 3,
  kExitDiverged = 4,    // a replay did not repeat its record
  kExitDeviceLost = 5,  // used by a process of a run, not by a command: a new process may compute
                        // again
  kExitInterrupted = 130,
};

}  // namespace primerl
