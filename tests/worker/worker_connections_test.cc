#include "runtime/worker/worker_connections.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/worker/peer_connections.h"

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

// The second tenant of a slot never ended in a run of several processes.
TEST(ConnectionReports, EachUseOfASlotIsReportedOnceWhenItHasFinished) {
  std::vector<std::string> said;
  ConnectionEvents events;
  events.tenant_finished = [&said](TenantSlot tenant, uint32_t tenancy, const std::string& why) {
    said.push_back(fmt::format("{}~{} {}", tenant.value, tenancy, why));
  };
  PeerConnections connections(std::move(events));
  for (const uint32_t tenancy : {0U, 0U, 1U, 1U})
    connections.tenant_finished(TenantSlot(0), tenancy);
  connections.tenant_finished(TenantSlot(1), 0);
  connections.tenant_failed(TenantSlot(0), 1, "its data is gone");
  EXPECT_THAT(said, ::testing::ElementsAre("0~0 ", "0~1 ", "1~0 ", "0~1 its data is gone"));
}

}  // namespace
}  // namespace primerl
