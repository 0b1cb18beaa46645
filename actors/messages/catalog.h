/// Every message type of the standard actors, one per line. The round-trip test, `primerl-graph
/// messages` and the handshake hash read this list.
#pragma once

#include <vector>

#include "graph/message_type.h"

namespace primerl {

std::vector<const MessageType*> message_catalog();

}  // namespace primerl
