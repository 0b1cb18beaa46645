#include "runtime/worker/hosted_tenants.h"

#include "graph/joining.h"
#include "runtime/backends/tenant_resources.h"

namespace primerl {

void host_tenants(const Plan& plan, CafExecutorSetup& setup, WorkerServices& services,
                  WorkerCuts* cuts) {
  if (!plan.settings.tenant_limits.are_set()) return;
  setup.make_tenant = [&services, cuts](
                          const Plan& graph,
                          const TenantChange& change) -> Result<std::shared_ptr<const Tenant>> {
    ASSIGN_OR_RETURN(auto tenant, tenant_of_table(graph, change.table, change.slot, change.tenancy,
                                                  *graph.catalog));
    const bool is_trained_here = services.worker_files().begin_tenant(*tenant);
    if (is_trained_here && cuts != nullptr) cuts->tenant_joined(change.slot, change.tenancy);
    return tenant;
  };
  setup.tenant_resources = notify_resource;
  setup.events.tenant_changed = [&services, cuts](const TenantChange& change, const Status&) {
    if (change.kind != TenantChange::Kind::kLeave) return;
    if (cuts != nullptr) cuts->tenant_left(change.slot, change.tenancy);
    Tenant left;
    left.name = change.name;
    left.slot = change.slot;
    left.tenancy = change.tenancy;
    services.end_tenant(left);
  };
}

}  // namespace primerl
