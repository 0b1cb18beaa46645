// All timeouts between processes are computed from one number.
#include "runtime/wire/timeouts.h"

#include <gtest/gtest.h>

namespace primerl {
namespace {

TEST(Timeouts, LeaveAFrozenPeerTimeToBeFoundDead) {
  for (const double seconds : {1.0, 2.0, 5.0, 15.0, 60.0, 3600.0}) {
    const Duration dead_after = Duration::nanoseconds(static_cast<int64_t>(seconds * 1e9));
    // Four heartbeats may be late or lost.
    EXPECT_LE((beat_every(dead_after) * 5).to_nanoseconds(), dead_after.to_nanoseconds());
    EXPECT_LE(beat_every(dead_after), Duration::seconds(1));
    EXPECT_GT(greet_max(dead_after), dead_after);
    EXPECT_GE(hello_max(dead_after), dead_after);
    EXPECT_GT(agent_back_max(dead_after), dead_after);
  }
}

}  // namespace
}  // namespace primerl
