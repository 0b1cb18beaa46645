/// Makes a worker process accept tenants that join while the run lives: it reads their tables, has
/// their files ready before their actors start, and tells engines, learner and weight channel.
#pragma once

#include "runtime/exec/caf_executor.h"
#include "runtime/worker/worker_services.h"

namespace primerl {

/// Called on every group's thread.
struct HostedEvents {
  /// A learner of this process is about to train the tenant.
  std::function<void(TenantSlot slot, uint32_t tenancy)> joined;
  /// The tenant has left in all groups of this process.
  std::function<void(TenantSlot slot, uint32_t tenancy)> left;
};

/// Adds this to `setup`. A graph without slots is left as it is. `services` must stay valid while
/// the executor exists; it is used on every group's thread.
void host_tenants(const Plan& plan, CafExecutorSetup& setup, WorkerServices& services,
                  HostedEvents events);

}  // namespace primerl
