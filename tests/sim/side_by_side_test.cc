// Environments side by side: an env node judges as many rollouts at once as it has replicas, except
// the one that gives the tasks, and no rollout waits for another one's environment.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "graph/base/json.h"
#include "tests/sim/demo_run.h"

namespace primerl::sim {
namespace {

constexpr Duration kCall = Duration::seconds(1);

/// One batch of 256 rollouts, all in flight at once, whose environment takes one second.
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

/// Rollouts that failed, and calls that hung (for 8 s; abandoned after 5), over ten runs.
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

TEST(SideBySide, AHangingEnvironmentFailsOnlyItsRollout) {
  const auto [num_failed, num_hung] = failed_of_hung(25);
  EXPECT_GT(num_hung, 0);
  EXPECT_LE(num_failed, num_hung);
}

TEST(SideBySide, AHangOfTheOnlyInstanceFailsWaitingRollouts) {
  const auto [num_failed, num_hung] = failed_of_hung(1);
  EXPECT_GT(num_failed, num_hung);
}

/// Environments that throw in every way, answer with 1 MiB, with bytes that are not text, with an
/// infinite reward, slowly, and not at all.
DemoCase hostile_demo(uint64_t seed, int64_t replicas) {
  DemoCase demo{.seed = seed, .fault = Fault::kHostile};
  demo.environment_takes = Duration::milliseconds(10);
  demo.sets = {fmt::format("node.env.replicas={}", replicas),
               "tenant.main.filters={ zero_advantage = false }"};
  return demo;
}

TEST(SideBySide, HostileEnvironmentsFailOnlyTheirRollouts) {
  int64_t num_hung = 0, num_late = 0, num_failed = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const auto result = run_demo(hostile_demo(seed, 25));
    EXPECT_THAT(result.violations, ::testing::IsEmpty()) << "seed " << seed;
    num_hung += result.num_abandoned;
    num_failed += result.num_of("failed");
    for (const std::string& text : result.rollouts) {
      const Json line = parse_json(text, "rollouts.jsonl").value();
      if (*line.get_string("end") != "failed") continue;
      const std::string why = *line.get_string("reason");
      num_late += why.find("did not") != std::string::npos;
      EXPECT_LT(why.size(), 60'000U) << "seed " << seed;
      EXPECT_THAT(why, ::testing::ContainsRegex("environment|observation")) << "seed " << seed;
    }
  }
  EXPECT_GT(num_failed, 100);
  EXPECT_GT(num_hung, 0);
  EXPECT_LE(num_late, num_hung) << "somebody waited for another's environment";
}

TEST(SideBySide, RunsWithHostileEnvironmentsRepeat) {
  const auto first = run_demo(hostile_demo(3, 9)), second = run_demo(hostile_demo(3, 9));
  EXPECT_EQ(first.trace_hash, second.trace_hash);
  EXPECT_EQ(first.rollouts, second.rollouts);
}

/// How long a run takes to end after Ctrl-C, during calls of this length.
Duration drained_within(Duration call, int64_t replicas) {
  DemoCase demo{.seed = 5};
  demo.environment_takes = call;
  demo.sets = {fmt::format("node.env.replicas={}", replicas)};
  Time asked;
  Time ended;
  DemoHooks hooks;
  hooks.is_judged = false;  // it does not finish
  hooks.after_event = [&](VirtualExecutor& executor) {
    if (asked == Time() && executor.now() - Time() > Duration::milliseconds(2500)) {
      asked = executor.now();
      executor.request_drain();
    }
    ended = executor.now();
    return ok();
  };
  const auto result = run_demo(demo, hooks);
  EXPECT_EQ(result.outcome.end, RunEnd::kInterrupted)
      << (result.outcome.status.ok() ? "" : result.outcome.status.error().text());
  EXPECT_NE(asked, Time());
  return ended - asked;
}

TEST(SideBySide, AnInterruptedRunWaitsOnlyForRunningCalls) {
  // 24 rollouts and two environments: without the drain rule, twelve more calls would follow each.
  EXPECT_LE(drained_within(Duration::seconds(4), 3).to_seconds(), 4.0);
  // environment_timeout is 5 s. All calls are abandoned, which is more than abandoned_max.
  EXPECT_LE(drained_within(Duration::seconds(1000), 25).to_seconds(), 5.0);
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
