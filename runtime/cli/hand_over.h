/// Commands that need a model or run actors belong to primerl-worker: primerl-graph checks their
/// flags and executes it.
#pragma once

#include "runtime/program/allocator_settings.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"
#include "runtime/program/programs.h"

namespace primerl {

/// `Chosen` has validate() and words(), which returns the command line of primerl-worker.
template <class Chosen>
int hand_over(const Chosen& arguments) {
  if (const Status valid = arguments.validate(); !valid.ok())
    return fail(valid.error(), kExitBadCommandLine);
  if (const Status valid = check_allocator_settings(); !valid.ok())
    return fail(valid.error(), kExitBadConfiguration);
  return fail(exec_worker(arguments.words()), kExitFailed);
}

}  // namespace primerl
