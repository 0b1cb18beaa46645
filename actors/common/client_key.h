/// Whose requests a client may make. Pure.
#pragma once

#include "graph/http_calls.h"
#include "graph/tenancies.h"

namespace primerl {

/// Whether the client's key is one of the tenant, or of any. A later tenant of the same name has
/// other keys.
inline bool may_use(const ClientRequest& client, const Tenant& tenant) {
  return client.tenant.empty() || client.tenant == tenancy_name(tenant);
}

}  // namespace primerl
