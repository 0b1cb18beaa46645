/// What a program's exit code says; documented, stable, the same for every command.
#pragma once

namespace primerl {

enum ExitCode : int {
  kExitDone = 0,
  kExitFailed = 1,            // the run (or a check of `doctor`) failed
  kExitBadConfiguration = 2,  // a graph, model folder or other input file is wrong
  kExitBadCommandLine = 3,
  kExitDiverged = 4,    // a replay did not repeat its record
  kExitDeviceLost = 5,  // of a process of a run, not of a command: a new one may compute again
  kExitInterrupted = 130,
};

}  // namespace primerl
