/// Explains to a person why an agent could not be reached: how the newest attempt to connect ended,
/// and what to do. Plain function; any thread.
#pragma once

#include <string>

#include "runtime/transport/zmq_frames.h"

namespace primerl {

/// `who` is "the agent of host 'x' at 10.0.0.5:7300"; `public_key` is the key of this side.
Error unreachable(const std::string& who, const std::string& public_key, FrameDialer::Try newest);

}  // namespace primerl
