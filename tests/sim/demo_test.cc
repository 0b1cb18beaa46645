// The demo's graph, unchanged, under a thousand schedules and every fault.
//
// 1,000 seeds x off-policy limit 0, 1, 2 x seven faults: 21,000 runs, about a minute on one quiet
// core. PRIMERL_SIM_SEEDS=20 is a shorter test (sanitizers). PRIMERL_SEED runs one seed; with
// PRIMERL_SIM_OFF_POLICY and PRIMERL_SIM_FAULT it runs one case. A failure prints that command.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "graph/base/json.h"
#include "tests/sim/demo_run.h"

namespace primerl::sim {
namespace {

constexpr uint64_t kSeeds = 200;

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

struct Matrix {
  uint64_t first = 1;
  uint64_t last = kSeeds;
  std::vector<int64_t> off_policy{0, 1, 2};
  std::vector<Fault> faults{std::begin(kFaults), std::end(kFaults)};
};

Matrix matrix() {
  Matrix matrix;
  if (const auto seeds = from_environment("PRIMERL_SIM_SEEDS"); !seeds.empty())
    matrix.last = std::strtoull(seeds.c_str(), nullptr, 10);
  if (const auto seed = from_environment("PRIMERL_SEED"); !seed.empty())
    matrix.first = matrix.last = std::strtoull(seed.c_str(), nullptr, 10);
  if (const auto steps = from_environment("PRIMERL_SIM_OFF_POLICY"); !steps.empty())
    matrix.off_policy = {std::strtoll(steps.c_str(), nullptr, 10)};
  if (const auto fault = from_environment("PRIMERL_SIM_FAULT"); !fault.empty())
    std::erase_if(matrix.faults, [&](Fault each) { return to_string(each) != fault; });
  return matrix;
}

std::string words(const DemoCase& demo, const DemoResult& result) {
  std::string text;
  for (const auto& violation : result.violations) text += violation + "\n";
  return text + "repeat with: " + repeat_command(demo) + "\n";
}

class DemoUnder : public ::testing::TestWithParam<Fault> {};

TEST_P(DemoUnder, KeepsItsRulesAtEverySeed) {
  const Matrix all = matrix();
  const bool is_chosen =
      std::find(all.faults.begin(), all.faults.end(), GetParam()) != all.faults.end();
  if (!is_chosen) GTEST_SKIP() << "PRIMERL_SIM_FAULT chose another";
  uint64_t num_runs = 0;
  for (int64_t off_policy : all.off_policy) {
    for (uint64_t seed = all.first; seed <= all.last; ++seed) {
      const DemoCase demo{.seed = seed, .max_off_policy_steps = off_policy, .fault = GetParam()};
      const auto result = run_demo(demo);
      ASSERT_TRUE(result.violations.empty()) << words(demo, result);
      ++num_runs;
    }
  }
  EXPECT_EQ(num_runs, all.off_policy.size() * (all.last - all.first + 1));
}

INSTANTIATE_TEST_SUITE_P(Fault, DemoUnder, ::testing::ValuesIn(kFaults),
                         [](const auto& named) { return std::string(to_string(named.param)); });

TEST(Demo, EachFaultReallyHappens) {
  const auto total = [](Fault fault, std::string_view end) {
    int count = 0;
    for (uint64_t seed = 1; seed <= 5; ++seed)
      count += run_demo({.seed = seed, .fault = fault}).num_of(end);
    return count;
  };
  EXPECT_EQ(total(Fault::kNone, "failed"), 0);
  EXPECT_EQ(total(Fault::kNone, "filtered"), 0);
  EXPECT_GT(total(Fault::kEnvironmentError, "failed"), 0);
  EXPECT_GT(total(Fault::kRefusedPrompt, "failed"), 0);
  EXPECT_GT(total(Fault::kNanReward, "failed"), 0);
  EXPECT_GT(total(Fault::kFilteredGroups, "filtered"), 0);
  EXPECT_GT(total(Fault::kEnvironmentHang, "failed"), 0);
  int64_t abandoned = 0;
  for (uint64_t seed = 1; seed <= 5; ++seed)
    abandoned += run_demo({.seed = seed, .fault = Fault::kEnvironmentHang}).num_abandoned;
  EXPECT_GT(abandoned, 0);
}

/// Everything that an actor or its group changes is in their saved state. Groups are replaced at
/// random moments by new ones that are made from the bytes of their state: such a run makes the
/// same steps.
TEST(Demo, GroupsRestoredFromTheirStateContinueUnchanged) {
  const Matrix all = matrix();
  const uint64_t last = std::min(all.last, std::max<uint64_t>(all.first, 20));
  std::map<std::string, int> num_remade;
  for (const Fault fault : all.faults) {
    for (uint64_t seed = all.first; seed <= last; ++seed) {
      const DemoCase demo{.seed = seed, .fault = fault, .checkpoint_every = 2};
      const auto plan = demo_plan(demo);
      RandomStream choice(mix(seed, 12));
      DemoHooks hooks;
      hooks.after_event = [&](VirtualExecutor& executor) -> Status {
        if (choice.below(20) != 0) return ok();
        const GroupId group(static_cast<uint32_t>(choice.below(plan->groups.size())));
        if (!executor.may_remake(group)) return ok();
        ++num_remade[plan->group(group).name];
        return executor.remake(group);
      };
      const DemoResult remade = run_demo(demo, hooks);
      const DemoResult plain = run_demo(demo);
      ASSERT_TRUE(remade.violations.empty()) << words(demo, remade);
      ASSERT_EQ(remade.trace_hash, plain.trace_hash) << repeat_command(demo);
      ASSERT_EQ(remade.rollouts, plain.rollouts) << repeat_command(demo);
      ASSERT_EQ(remade.took, plain.took) << repeat_command(demo);
    }
  }
  for (const std::string group : {"env.main", "rollout.main", "router", "trainer", "broadcaster"})
    EXPECT_GT(num_remade[group], 0) << group;
}

/// 24 rollouts in flight, with an engine that runs two and queues one.
TEST(Demo, OverloadFailsNoRollout) {
  for (const std::string max_waiting : {"1", "2", "8"}) {
    for (uint64_t seed = 1; seed <= 30; ++seed) {
      const DemoCase demo{
          .seed = seed,
          .sets = {"resource.engine.max_waiting=" + max_waiting, "resource.engine.max_running=2"}};
      const auto result = run_demo(demo);
      ASSERT_TRUE(result.violations.empty()) << words(demo, result);
      ASSERT_EQ(result.num_of("failed"), 0) << max_waiting << " " << repeat_command(demo);
      ASSERT_GE(result.num_of("trained"), kMaxSteps * kBatchSize);
    }
  }
}

/// Random letters, up to the text at which the tenant stops.
TEST(Demo, ATurnEndsAtItsStopTextAndKeepsItsTokens) {
  for (const std::string include_stop : {"false", "true"}) {
    const DemoCase demo{
        .sets = {"tenant.main.sampling={ max_tokens = 60, stop = [\"e\", \"never\"], "
                 "include_stop = " +
                     include_stop + " }",
                 "node.rollout.log_tokens=true", "resource.engine.new_tokens_min=64",
                 "resource.engine.new_tokens_max=64"}};
    const auto result = run_demo(demo);
    ASSERT_TRUE(result.violations.empty()) << words(demo, result);
    int num_stopped = 0;
    for (const auto& line : result.rollouts) {
      const Json rollout = parse_json(line, "rollouts.jsonl").value();
      if (rollout.find("end")->as_string() != "trained") continue;
      if (*rollout.find("truncated") == Json(true)) continue;
      const std::string text = rollout.find("completion")->as_string();
      const size_t num_tokens = rollout.find("tokens")->as_array().size() -
                                rollout.find("prompt_tokens")->as_array().size();
      EXPECT_EQ(text.find('e'), include_stop == "true" ? text.size() - 1 : std::string::npos);
      EXPECT_EQ(num_tokens, text.size() + (include_stop == "true" ? 0 : 1)) << text;
      ++num_stopped;
    }
    EXPECT_GT(num_stopped, 10);
  }
}

TEST(Demo, EqualSeedsGiveEqualBytesOfRolloutsJsonl) {
  std::set<uint64_t> hashes;
  for (Fault fault : kFaults) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const DemoCase demo{.seed = seed, .fault = fault};
      const auto once = run_demo(demo);
      const auto again = run_demo(demo);
      ASSERT_FALSE(once.rollouts.empty());
      ASSERT_EQ(once.rollouts, again.rollouts) << repeat_command(demo);
      ASSERT_EQ(once.trace_hash, again.trace_hash) << repeat_command(demo);
      if (fault == Fault::kNone) hashes.insert(once.trace_hash);
    }
  }
  EXPECT_EQ(hashes.size(), 5u) << "every seed is another run";
}

TEST(Demo, TruncatedSamplingTrainsWithItsKeptSets) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const DemoCase demo{.seed = seed, .sets = {"tenant.main.sampling={ top_k = 5, top_p = 0.9 }"}};
    const auto result = run_demo(demo);
    ASSERT_TRUE(result.violations.empty()) << words(demo, result);
    EXPECT_EQ(result.num_of("failed"), 0) << "every token has the set it was drawn from";
    EXPECT_EQ(result.num_of("trained"), kMaxSteps * kBatchSize);
    EXPECT_EQ(result.trace_hash, run_demo(demo).trace_hash);
    EXPECT_NE(result.trace_hash, run_demo({.seed = seed}).trace_hash) << "the sets were sent";
  }
}

TEST(Demo, StrictlyOnPolicyTrainsOnlyOnTheLiveVersion) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const auto result = run_demo({.seed = seed, .max_off_policy_steps = 0});
    ASSERT_TRUE(result.violations.empty());
    for (const auto& line : result.rollouts) {
      if (line.find("\"end\":\"trained\"") == std::string::npos) continue;
      EXPECT_THAT(line, ::testing::HasSubstr("\"staleness\":0"));
    }
  }
}

// The router reads the load of prefill alone while prefill and decode share an engine.
TEST(Demo, TrainsWithoutTheLoadOfDecode) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const auto result = run_demo({.seed = seed, .without_edge = "decode.load -> router.load"});
    EXPECT_EQ(result.outcome.end, RunEnd::kFinished) << "seed " << seed;
    EXPECT_THAT(result.violations, ::testing::IsEmpty());
    EXPECT_GE(result.num_of("trained"), kMaxSteps * kBatchSize);
  }
}

// The negative control: without the trainer's answers no rollout can end, and the suite must report
// that.
TEST(Demo, WithoutTheEndedEdgeTheSuiteFails) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const auto result = run_demo({.seed = seed, .without_edge = "trainer.ended -> rollout.ended"});
    EXPECT_EQ(result.outcome.end, RunEnd::kStalled) << "seed " << seed;
    EXPECT_THAT(result.violations, ::testing::Contains(::testing::HasSubstr("rollouts began")));
  }
}

}  // namespace
}  // namespace primerl::sim
