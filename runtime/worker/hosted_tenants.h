/// Makes a worker process accept tenants that join while the run lives: it reads their tables, has
/// their files ready before their actors start, and tells engines, learner and weight channel.
#pragma once

#include "runtime/exec/caf_executor.h"
#include "runtime/worker/worker_cuts.h"
#include "runtime/worker/worker_services.h"

namespace primerl {

/// Adds this to `setup`. A graph without slots is left as it is. `services` must stay valid while
/// the executor exists. `cuts`, which may be null, gets each tenant that a learner here is about to
/// train, and each that all groups here have left, on the threads of the groups.
void host_tenants(const Plan& plan, CafExecutorSetup& setup, WorkerServices& services,
                  WorkerCuts* cuts);

}  // namespace primerl
