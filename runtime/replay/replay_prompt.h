/// `replay --step`: lets a person go through a recorded run step by step.
#pragma once

#include <istream>

#include "runtime/replay/replay_session.h"

namespace primerl {

/// Reads commands (`next [N]`, `back`, `show [NODE]`, `go HOST:STEP`, `quit`) until the end of
/// `input`; returns an exit code. `back` replays again from the start, up to one step before.
int step_by_hand(const ReplaySession& session, const ReplaySetup& setup, std::istream& input);

}  // namespace primerl
