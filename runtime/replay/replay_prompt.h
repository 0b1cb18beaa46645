/// `replay --step`: a recorded run stepped by hand.
#pragma once

#include <istream>

#include "runtime/replay/replay_session.h"

namespace primerl {

/// Reads commands (`next [N]`, `back`, `show [NODE]`, `go HOST:STEP`, `quit`) until the end of
/// `input`; returns an exit code. Going back plays again from the start, up to one step before.
int step_by_hand(const ReplaySession& session, const ReplaySetup& setup, std::istream& input);

}  // namespace primerl
