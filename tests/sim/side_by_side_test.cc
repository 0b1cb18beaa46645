// Environments side by side: as many rollouts as an env node has replicas, less the one that gives
// the tasks, and nobody waits for another's environment.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "tests/sim/demo_run.h"

namespace primerl::sim {
namespace {

constexpr Duration kCall = Duration::seconds(1);

/// One batch of 256 rollouts, all in flight at once, whose environment takes a second.
DemoResult run_batch(int64_t replicas) {
  DemoCase demo{.max_off_policy_steps = 0};
  demo.group_size = 8;
  demo.batch_size = 256;
  demo.max_steps = 1;
  demo.environment_takes = kCall;
  demo.sets = {"node.rollout.max_inflight=256",
               "resource.engine.max_running=256",
               "resource.engine.kv_blocks=65536",
               "tenant.main.environment_timeout=\"600s\"",
               "tenant.main.rollout_timeout=\"900s\"",
               "graph.drain_max=\"700s\"",
               "graph.stall_after=\"700s\""};
  demo.sets.push_back(fmt::format("node.env.replicas={}", replicas));
  auto result = run_demo(demo);
  EXPECT_THAT(result.violations, ::testing::IsEmpty());
  EXPECT_EQ(result.num_of("trained"), 256);
  return result;
}

TEST(SideBySide, A256RolloutsOfASlowEnvironmentTakeTheTimeOfOneCall) {
  const auto result = run_batch(257);
  EXPECT_GE(result.took, kCall);
  EXPECT_LE(result.took.to_seconds(), 1.5);
}

TEST(SideBySide, OneInstanceTakesOneCallAfterTheOther) {
  EXPECT_GE(run_batch(1).took.to_seconds(), 256);
}

/// Rollouts that failed, and calls that hung (for 8 s; given up after 5), over ten runs.
std::pair<int64_t, int64_t> failed_of_hung(int64_t replicas) {
  int64_t num_failed = 0, num_hung = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    DemoCase demo{.seed = seed, .fault = Fault::kEnvironmentHang};
    demo.environment_takes = Duration::milliseconds(10);
    demo.sets = {fmt::format("node.env.replicas={}", replicas)};
    const auto result = run_demo(demo);
    EXPECT_THAT(result.violations, ::testing::IsEmpty()) << "seed " << seed;
    num_failed += result.num_of("failed");
    num_hung += result.num_abandoned;
  }
  return {num_failed, num_hung};
}

TEST(SideBySide, AHangingOneCostsItsOwnRolloutAlone) {
  const auto [num_failed, num_hung] = failed_of_hung(25);
  EXPECT_GT(num_hung, 0);
  EXPECT_LE(num_failed, num_hung);
}

TEST(SideBySide, OfOneInstanceAHangCostsWhoWaitsBehindIt) {
  const auto [num_failed, num_hung] = failed_of_hung(1);
  EXPECT_GT(num_failed, num_hung);
}

TEST(SideBySide, TheSameSeedGivesTheSameRun) {
  DemoCase demo{.seed = 3};
  demo.environment_takes = Duration::milliseconds(7);
  demo.sets = {"node.env.replicas=9"};
  const auto first = run_demo(demo), second = run_demo(demo);
  EXPECT_THAT(first.violations, ::testing::IsEmpty());
  EXPECT_EQ(first.trace_hash, second.trace_hash);
  EXPECT_EQ(first.rollouts, second.rollouts);
}

}  // namespace
}  // namespace primerl::sim
