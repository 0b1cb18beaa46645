/// Makes a worker process accept tenants that join while the run lives: it reads their tables, has
/// their files ready before their actors start, and tells engines, learner and weight channel.
#pragma once

#include "runtime/exec/caf_executor.h"
#include "runtime/worker/worker_cuts.h"
#include "runtime/worker/worker_services.h"

namespace primerl {

/// Adds this to `setup`. A graph without slots is left as it is. `services` and `cuts` must stay
/// valid while the executor exists; they are used on every group's thread. `cuts` hears of tenants
/// that join and leave; null: the process makes none.
void host_tenants(const Plan& plan, CafExecutorSetup& setup, WorkerServices& services,
                  WorkerCuts* cuts);

}  // namespace primerl
