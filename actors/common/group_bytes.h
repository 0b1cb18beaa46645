/// How large a TrajectoryGroup may be. A group is one message, so everything in it except long
/// token arrays must fit into kMessageBytesMax; most of that are the spans of versions. `check`
/// refuses tenants whose groups could be larger, and the actors that make groups check each group
/// again. Pure functions.
#pragma once

#include "actors/messages/rollout.h"
#include "graph/contract.h"

namespace primerl {

/// Sampled groups have log-probabilities and version spans; given ones (supervised examples) do
/// not.
enum class GroupKind { kSampled, kGiven };

/// The largest body of a group of the tenant, in bytes, for group_size members of up to seq_len
/// tokens.
int64_t group_bytes_max(const Tenant& tenant, GroupKind kind);
/// The same bound in the form that a contract needs: the largest of all tenants.
Amount group_bytes(GroupKind kind);

/// `fault`, cut to kFaultBytesMax bytes at the end of a whole character.
std::string clipped_fault(std::string fault);

/// An error if the group is too large for one message.
Status check_group_bytes(const TrajectoryGroup& group);

}  // namespace primerl
