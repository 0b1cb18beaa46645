/// Envelope: a message with everything that the runtime needs to deliver it once and in order. A
/// plain value; a copy shares the payload. The ledger of an edge counts envelopes.
#pragma once

#include <cstdint>

#include "graph/base/clock.h"
#include "graph/base/ids.h"
#include "graph/message_type.h"

namespace primerl {

struct Envelope {
  EdgeId edge;
  InstanceId sender;
  InstanceId target;
  TenantSlot tenant;
  InstanceId origin;         // the instance that began the conversation
  uint32_t incarnation = 0;  // incarnation of the sender's process
  uint64_t sequence = 0;     // from 1, dense per (edge, sender, target)
  uint64_t sender_step = 0;  // step of the sender's group that emitted it
  StepRef cause;             // the delivery that this answers, else the step that emitted it
  Time sent_at;
  uint64_t blob_bytes = 0;  // charged to the edge's byte credit
  Payload payload;
};

}  // namespace primerl
