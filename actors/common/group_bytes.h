/// How large a TrajectoryGroup may be: it travels as one message, so what its members have besides
/// long token arrays must fit into kMessageBytesMax: spans of versions above all. `check` refuses
/// tenants whose groups could be larger; the actors that make groups hold each against the limit
/// again. Pure functions.
#pragma once

#include "actors/messages/rollout.h"
#include "graph/contract.h"

namespace primerl {

/// Sampled groups carry log-probabilities and version spans, given ones (supervised) do not.
enum class GroupKind { kSampled, kGiven };

/// The largest body of a group of the tenant, in bytes: group_size members of up to seq_len tokens.
int64_t group_bytes_max(const Tenant& tenant, GroupKind kind);
/// The same as a contract says it; of several tenants the largest.
Amount group_bytes(GroupKind kind);

/// Cut after a whole character, to kFaultBytesMax.
std::string clipped_fault(std::string fault);

/// An error when the group is too large for a message.
Status check_group_bytes(const TrajectoryGroup& group);

}  // namespace primerl
