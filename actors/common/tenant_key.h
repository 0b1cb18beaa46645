/// The weights keys of a tenant. The moving key is its slot, and which use of the slot it is. So a
/// later tenant of a slot finds no version and no KV block of an earlier one. Messages name a key
/// by its adapter; none is the moving key.
#pragma once

#include <algorithm>

#include "graph/base/services.h"
#include "graph/tenancies.h"
#include "graph/tenant.h"
#include "kernels/weights/weights_key.h"

namespace primerl {

static_assert(kTenancyMax < 1U << kTenancyBits, "an AdapterId has the tenancy in its low bits");

inline WeightsKey weights_key(const Services& services, TenantSlot slot) {
  return {slot, AdapterId(services.tenant(slot).tenancy)};
}

/// The key that a message of tenant `slot` names.
inline WeightsKey key_of(const Services& services, TenantSlot slot, AdapterId adapter) {
  return adapter.is_none() ? weights_key(services, slot) : WeightsKey{slot, adapter};
}

/// The adapter of a key in a message: none for a moving key.
inline AdapterId adapter_in_message(WeightsKey key) {
  return key.is_snapshot() ? key.adapter : AdapterId();
}

/// Whether the key is of a tenant that is there, and not of an earlier one of its slot.
inline bool is_present(const Services& services, WeightsKey key) {
  const auto tenants = services.tenants();
  return std::find(tenants.begin(), tenants.end(), key.tenant) != tenants.end() &&
         key.moving_key() == weights_key(services, key.tenant);
}

/// The version of a key in a PolicyLive, PolicyUpdate or PolicyApplied of tenant `slot`: of its
/// moving key without `adapter`. None if the message does not name the key.
template <class Message>
PolicyVersion version_in(const Message& message, const Services& services, TenantSlot slot,
                         AdapterId adapter = {}) {
  const WeightsKey key = key_of(services, slot, adapter);
  if (key_of(services, slot, message.adapter) == key) return message.version;
  for (const auto& other : message.others)
    if (key_of(services, slot, other.adapter) == key) return other.version;
  return {};
}

}  // namespace primerl
