#include "runtime/worker/worker_connections.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primerl {
namespace {

// A killed engine was restarted while its peer was frozen for 12 s. It gave up after 10 s and the
// run ended, although only 15 s of silence count as a death.
TEST(ConnectionLimits, APeerIsGivenLongerToGreetThanToBeFoundDead) {
  for (const Duration dead_after :
       {Duration::seconds(1), Duration::seconds(15), Duration::seconds(600)}) {
    Plan plan;
    plan.settings.dead_after = dead_after;
    EXPECT_EQ(connection_limits(plan).greet_timeout, dead_after + Duration::seconds(10));
  }
}

}  // namespace
}  // namespace primerl
