/// Wiring: the edges of a Plan, split into links, one per (edge, sender instance, target instance),
/// with every number that the hot path needs. Built once per process, immutable, shared by its
/// groups.
///
/// Pairs that an edge joins: per_tenant -> per_tenant nodes join equal tenant slots; shared ->
/// per_tenant and per_tenant -> shared join all (the envelope's tenant chooses); in a place with
/// replicas each replica is joined only with itself. Links are numbered by edge, then sender, then
/// target.
#pragma once

#include <memory>
#include <vector>

#include "graph/plan.h"
#include "runtime/wire/message_batch.h"

namespace primerl {

/// One edge between two instances. (A PeerConnection carries many links between two processes, see
/// runtime/transport/peer_connection.h.)
struct WiredLink {
  EdgeId edge;
  InstanceId sender, target;
  GroupId sender_group, target_group;
  uint32_t output = 0;  // index in the sender's contract
  uint32_t input = 0;   // index in the target's contract
  bool is_feedback = false;
  bool latest_wins = false;
  bool is_remote = false;       // its ends are in different processes: payloads are kept until
                                // acknowledged
  int64_t capacity = 0;         // messages that may be unsettled; further messages wait in the
                                // outbox
  int64_t bytes_max = 0;        // Blob bytes that may be unsettled
  int64_t bound = 0;            // the maximum number of waiting messages
  uint64_t grant_messages = 1;  // settled messages after which a grant is sent: half a window
  uint64_t grant_bytes = 1;     // settled bytes after which a grant is sent
  TenantSlot target_tenant;     // tenant of the target instance; none when shared
  uint32_t out_index = 0;       // index among the links that leave the sender's group
  uint32_t in_index = 0;        // index among the links that arrive at the target's group
};

struct GroupWiring {
  std::vector<LinkId> out;     // by out_index
  std::vector<LinkId> in;      // by in_index
  std::vector<GroupId> peers;  // other groups with a link to or from this one, ascending
};

/// Most messages of one handler, and of one work call, by output of a node: for the tenants of all
/// slots, as planned.
struct NodeBursts {
  std::vector<int64_t> of_handler, of_work;
};

struct Wiring {
  std::vector<WiredLink> links;     // index = LinkId
  std::vector<GroupWiring> groups;  // index = GroupId
  std::vector<NodeBursts> bursts;   // index = NodeId
  uint32_t num_slots = 0;           // of tenants, free ones too
};

/// What happens to a message for another process when it is emitted again.
enum class EmissionFate {
  kSend,         // the receiver follows the sender live, or handles it after the record: send it
  kSendLater,    // not handled yet: send it as soon as it has credit
  kHandled,      // it was handled, and the receiver has its content: count it as settled
  kOverwritten,  // a newer message was handled instead
  kReceived,     // the receiver received it before a cut and will acknowledge it
};

std::shared_ptr<const Wiring> make_wiring(const Plan& plan);

}  // namespace primerl
