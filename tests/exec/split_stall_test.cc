// The wait cycle of a stall, when the waiting groups are in different processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/exec/small_graph.h"
#include "tests/exec/split_executor.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SplitStall, ACycleOverThreeProcessesIsNamed) {
  // a fills b; b keeps its input paused until c sends; c waits for a. b accepts only one message,
  // so that no group can stall before the cycle is closed.
  Strings holding;
  holding.on_start = [](Puppet& puppet) {
    puppet.world().pause("in");
    return ok();
  };
  Strings sending = {.on_work = counts_to(10)};
  SmallGraph graph;
  graph.settings.stall_after = Duration::milliseconds(100);
  graph.node("a", {.strings = sending, .contract = make_source})
      .node("b", {.strings = holding})
      .node("c")
      .edge("a.out", "b.in", {.capacity = 1})
      .edge("a.pick", "c.in", {.capacity = 1})
      .edge("c.tell", "b.back", {.at_most = 1});
  MemoryHostServices process_services;
  SplitExecutor executor(graph.plan(), {&message_type<Number>()}, process_services, {});
  ASSERT_TRUE(executor.start().ok());
  const auto outcome = executor.wait();
  ASSERT_EQ(outcome.end, RunEnd::kStalled);
  EXPECT_THAT(outcome.stall.wait_cycle, ElementsAre("a (p0)", "b (p1)", "c (p2)"));
  EXPECT_THAT(outcome.stall.text(), HasSubstr("p0       a           0         -  full: a.out"));
  EXPECT_THAT(outcome.stall.text(), HasSubstr("wait cycle: a (p0) -> b (p1) -> c (p2) -> a (p0)"));
}

}  // namespace
}  // namespace primerl::testing
