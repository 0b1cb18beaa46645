/// The weights key of a tenant: its slot, and which use of the slot it is. So a later tenant of a
/// slot finds no version and no KV block of an earlier one.
#pragma once

#include "graph/base/services.h"
#include "graph/tenant.h"
#include "kernels/weights/weights_key.h"

namespace primerl {

inline WeightsKey weights_key(const Services& services, TenantSlot slot) {
  return {slot, AdapterId(services.tenant(slot).tenancy)};
}

}  // namespace primerl
