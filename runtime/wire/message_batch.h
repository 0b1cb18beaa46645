/// MessageBatch: everything that one step sends to one other group, delivered whole and in order.
///
/// A plain value. In a process it moves by pointer (one CAF message). Between processes a transport
/// writes its messages and grants as frames. Batches of one (from, to) pair must arrive in the
/// order in which they were shipped; batches of different pairs may overtake each other.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/envelope.h"

namespace primerl {

/// One link: (edge, sender instance, target instance), which has its own credit, sequence and
/// ledger. Numbered from 0 without gaps in a plan; equal in every process (wiring.h).
using LinkId = Id<struct LinkTag>;

/// Credit that the receiver returns: what it has settled (handled, or overwritten on a latest_wins
/// edge) since the link began. Running totals, so a repeated or late grant is harmless.
struct Grant {
  LinkId link;
  uint64_t num_messages = 0;
  uint64_t num_bytes = 0;    // of Blobs
  uint32_t incarnation = 0;  // of the sender that sent these messages
};

struct BatchedMessage {
  LinkId link;
  Envelope envelope;
};

struct MessageBatch {
  GroupId from;
  GroupId to;
  uint32_t incarnation = 0;  // incarnation of the sending group's process
  uint64_t cut =
      // number of the newest cut that the sender joined; within a process (process_cut.h)
      0;
  std::vector<BatchedMessage> messages;
  std::vector<Grant> grants;
  bool empty() const { return messages.empty() && grants.empty(); }
};

}  // namespace primerl
