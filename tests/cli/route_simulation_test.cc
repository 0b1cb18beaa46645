#include "runtime/cli/route_simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/base/random.h"

namespace primerl {
namespace {

using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::SizeIs;

RoutePolicyContract policy_named(const std::string& name) {
  for (auto& policy : route_policies())
    if (policy.name == name) return policy;
  ADD_FAILURE() << name;
  return {};
}

TracedTurn a_turn(uint32_t session, double arrival_s, int32_t num_prompt_tokens,
                  int32_t num_completion_tokens) {
  TracedTurn turn;
  turn.session = turn.group = session;
  turn.arrival_s = arrival_s;
  turn.num_prompt_tokens = num_prompt_tokens;
  turn.num_completion_tokens = num_completion_tokens;
  return turn;
}

SessionTrace trace_of(std::vector<TracedTurn> turns) {
  SessionTrace trace;
  for (const auto& turn : turns) {
    trace.num_sessions = std::max(trace.num_sessions, turn.session + 1);
    trace.num_groups = std::max(trace.num_groups, turn.group + 1);
  }
  trace.turns = std::move(turns);
  return trace;
}

constexpr SimulatedEngines kOne{
    .num_engines = 1, .prefill_tokens_per_s = 100, .decode_tokens_per_s = 10, .kv_blocks = 100};

TEST(RouteSimulation, PromptsAreQueuedAndSequencesShareTheRate) {
  // Prefilled at 1 s and 2 s. The first one alone has 10 tokens at 2 s; its other 30 share the rate
  // with the 20 of the second.
  const auto alone = simulate_routes(trace_of({a_turn(0, 0, 100, 10), a_turn(1, 0, 100, 30)}),
                                     policy_named("round_robin"), kOne);
  EXPECT_THAT(alone.group_p50_s, DoubleNear(2, 1e-9));
  EXPECT_THAT(alone.group_p90_s, DoubleNear(5, 1e-9));
  const auto together = simulate_routes(trace_of({a_turn(0, 0, 100, 30), a_turn(1, 0, 100, 20)}),
                                        policy_named("round_robin"), kOne);
  // From 2 s on each gets 5 tokens a second and has 20 left.
  EXPECT_THAT(together.group_p50_s, DoubleNear(6, 1e-9));
  EXPECT_THAT(together.end_s, DoubleNear(6, 1e-9));
}

TEST(RouteSimulation, ALaterTurnWaitsForTheAnswerBefore) {
  const auto outcome = simulate_routes(trace_of({a_turn(0, 0, 100, 10), a_turn(0, 0.5, 100, 10)}),
                                       policy_named("round_robin"), kOne);
  EXPECT_THAT(outcome.end_s, DoubleNear(4, 1e-9));
}

TEST(RouteSimulation, ATurnFindsItsHistoryButForTheLastToken) {
  auto first = a_turn(0, 0, 64, 64), second = a_turn(0, 0, 128, 10);
  first.blocks = second.blocks = {1, 2, 3, 4};
  const auto kept = simulate_routes(trace_of({first, second}), policy_named("round_robin"), kOne);
  EXPECT_THAT(kept.hit_rate, DoubleNear(127.0 / 192, 1e-9));
  SimulatedEngines small = kOne;
  small.kv_blocks = 3;
  const auto evicted =
      simulate_routes(trace_of({first, second}), policy_named("round_robin"), small);
  EXPECT_THAT(evicted.hit_rate, DoubleNear(96.0 / 192, 1e-9)) << "the last block was forgotten";
}

/// Groups of sessions whose prompts have a common beginning.
SessionTrace a_random_trace(uint64_t seed) {
  RandomStream draw(seed);
  std::vector<TracedTurn> turns;
  for (uint32_t session = 0; session < 60; ++session) {
    double arrival_s = static_cast<double>(session / 4) * 0.05;
    std::vector<uint64_t> blocks;
    for (uint64_t i = 0; i < 8; ++i) blocks.push_back(mix(session / 4, i));
    int32_t num_prompt_tokens = 300;
    for (uint64_t turn = 0; turn <= draw.below(4); ++turn) {
      TracedTurn made =
          a_turn(session, arrival_s, num_prompt_tokens, static_cast<int32_t>(1 + draw.below(100)));
      made.group = session / 4;
      num_prompt_tokens += made.num_completion_tokens + static_cast<int32_t>(draw.below(50));
      while (std::ssize(blocks) < num_prompt_tokens / 32)
        blocks.push_back(mix(mix(session, 99), blocks.size()));
      made.blocks = blocks;
      const auto num_tokens = made.num_prompt_tokens + made.num_completion_tokens;
      made.blocks.resize(static_cast<size_t>(num_tokens / 32));
      turns.push_back(made);
      arrival_s += draw.uniform();
    }
  }
  return trace_of(std::move(turns));
}

struct EveryRoute : ::testing::TestWithParam<std::string> {};

TEST_P(EveryRoute, LoadsReturnToZeroAndEqualTracesGiveEqualNumbers) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const SessionTrace trace = a_random_trace(seed);
    for (const int64_t num_engines : {1, 3, 8}) {
      const SimulatedEngines engines{.num_engines = num_engines, .kv_blocks = 200};
      const auto one = simulate_routes(trace, policy_named(GetParam()), engines);
      const auto other = simulate_routes(trace, policy_named(GetParam()), engines);
      EXPECT_THAT(one.loads_at_end, SizeIs(static_cast<size_t>(num_engines)));
      EXPECT_THAT(one.loads_at_end, Each(0U)) << "seed " << seed;
      EXPECT_EQ(one.hit_rate, other.hit_rate);
      EXPECT_EQ(one.group_p90_s, other.group_p90_s);
      EXPECT_GE(one.hit_rate, 0);
      EXPECT_LT(one.hit_rate, 1);
      EXPECT_GE(one.balance, 1 - 1e-9);
      EXPECT_LE(one.balance, static_cast<double>(num_engines) + 1e-9);
      EXPECT_LE(one.group_p50_s, one.group_p90_s);
      EXPECT_LE(one.group_p90_s, one.end_s);
    }
  }
}

std::vector<std::string> names_of_policies() {
  std::vector<std::string> names;
  for (const auto& policy : route_policies()) names.push_back(policy.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Catalog, EveryRoute, ::testing::ValuesIn(names_of_policies()),
                         [](const auto& instance) { return instance.param; });

TEST(RouteSimulation, CacheAwareFindsWhatOthersCompute) {
  const SessionTrace trace = a_random_trace(3);
  const auto hits = [&](const std::string& name) {
    return simulate_routes(trace, policy_named(name), {}).hit_rate;
  };
  EXPECT_GT(hits("cache_aware"), hits("sticky_least_loaded"));
  EXPECT_GT(hits("sticky_least_loaded"), hits("random"));
}

}  // namespace
}  // namespace primerl
