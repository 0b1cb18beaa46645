#include "actors/router/policies/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "graph/base/random.h"

namespace primerl {
namespace {

std::vector<EngineView> engines(std::vector<uint64_t> loads) {
  std::vector<EngineView> views;
  for (size_t i = 0; i < loads.size(); ++i)
    views.push_back({InstanceId(static_cast<uint32_t>(10 + i)), loads[i], 100, 100});
  return views;
}

RouteQuestion session(uint64_t number, int32_t sticky = -1) {
  return {number, mix(0, number), 100, sticky};
}

RouteQuestion with_known(std::vector<int32_t> num_known_tokens) {
  RouteQuestion question = session(1);
  question.num_known_tokens = std::move(num_known_tokens);
  return question;
}

/// Rules that every policy must follow: the conformance suite of route policies.
struct EveryPolicy : ::testing::TestWithParam<std::string> {};

TEST_P(EveryPolicy, ChoosesAnExistingEngine) {
  auto policy = make_route_policy(GetParam());
  ASSERT_NE(policy, nullptr);
  for (size_t count = 1; count <= 4; ++count)
    for (uint64_t i = 0; i < 20; ++i)
      for (int32_t sticky = -1; sticky < static_cast<int32_t>(count); ++sticky)
        EXPECT_LT(policy->choose(session(i, sticky), engines(std::vector<uint64_t>(count, 3))),
                  count);
}

TEST_P(EveryPolicy, AnswersEqualQuestionsEqually) {
  auto one = make_route_policy(GetParam());
  auto other = make_route_policy(GetParam());
  for (uint64_t i = 0; i < 50; ++i)
    EXPECT_EQ(one->choose(session(i), engines({i % 3, 1, 2})),
              other->choose(session(i), engines({i % 3, 1, 2})));
}

std::vector<std::string> names_of_policies() {
  std::vector<std::string> names;
  for (const auto& policy : route_policies()) names.push_back(policy.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Catalog, EveryPolicy, ::testing::ValuesIn(names_of_policies()),
                         [](const auto& instance) { return instance.param; });

TEST(RoutePolicies, AnUnknownNameIsNull) { EXPECT_EQ(make_route_policy("fastest"), nullptr); }

TEST(StickyLeastLoaded, StaysUntilTheEngineIsFullAndAnotherIsNot) {
  auto policy = make_route_policy("sticky_least_loaded");
  auto views = engines({9, 1});
  EXPECT_EQ(policy->choose(session(1, 0), views), 0U);
  views[0].num_free_blocks = 5;  // 95 % used: at the limit
  EXPECT_EQ(policy->choose(session(1, 0), views), 0U);
  views[0].num_free_blocks = 4;
  EXPECT_EQ(policy->choose(session(1, 0), views), 1U);
  views[1].num_free_blocks = 30;  // 70 % used: too full to be preferred
  EXPECT_EQ(policy->choose(session(1, 0), views), 0U);
}

TEST(StickyLeastLoaded, SendsANewSessionToTheLeastLoaded) {
  auto policy = make_route_policy("sticky_least_loaded");
  EXPECT_EQ(policy->choose(session(1), engines({3, 2, 5})), 1U);
}

TEST(ConsistentHash, MovesOnlyTheSessionsOfAnEngineThatLeft) {
  auto policy = make_route_policy("consistent_hash");
  const auto all = engines({0, 0, 0});
  const std::vector<EngineView> without_last(all.begin(), all.end() - 1);
  int moved = 0;
  for (uint64_t i = 0; i < 300; ++i) {
    const size_t before = policy->choose(session(i), all);
    const size_t after = policy->choose(session(i), without_last);
    if (before < 2)
      EXPECT_EQ(after, before);
    else
      ++moved;
  }
  EXPECT_GT(moved, 50);
  EXPECT_LT(moved, 150);
}

TEST(ConsistentHash, AnEngineThatJoinsTakesItsShareAndMovesNoOther) {
  auto policy = make_route_policy("consistent_hash");
  std::vector<InstanceId> in_use{InstanceId(10), InstanceId(11), InstanceId(12)};
  std::vector<InstanceId> with_another = in_use;
  with_another.push_back(InstanceId(13));
  int moved = 0;
  for (uint64_t i = 0; i < 400; ++i) {
    const InstanceId before = in_use[policy->home(session(i), in_use).value()];
    const InstanceId after = with_another[policy->home(session(i), with_another).value()];
    if (after == before) continue;
    EXPECT_EQ(after, InstanceId(13));
    ++moved;
  }
  EXPECT_GT(moved, 60);
  EXPECT_LT(moved, 140);
}

TEST(RoutePolicies, OnlyConsistentHashMakesASessionWaitForItsEngine) {
  const std::vector<InstanceId> in_use{InstanceId(10), InstanceId(11)};
  for (const auto& name : names_of_policies())
    EXPECT_EQ(make_route_policy(name)->home(session(1), in_use).has_value(),
              name == "consistent_hash");
}

TEST(LeastLoaded, LeavesThePrefixForALighterEngine) {
  auto policy = make_route_policy("least_loaded");
  EXPECT_EQ(policy->choose(session(1, 0), engines({2, 1, 3})), 1U);
}

TEST(Random, ChoosesEachAboutAsOften) {
  auto policy = make_route_policy("random");
  std::vector<int> count(4);
  for (uint64_t i = 0; i < 4000; ++i) ++count[policy->choose(session(i), engines({9, 0, 0, 0}))];
  for (const int chosen : count) EXPECT_NEAR(chosen, 1000, 100);
}

TEST(PowerOfTwo, NeverChoosesTheFullestAndEvensLoadsOut) {
  auto policy = make_route_policy("power_of_two");
  for (uint64_t i = 0; i < 100; ++i)
    EXPECT_NE(policy->choose(session(i), engines({1, 9, 1, 1})), 1U);
  std::vector<uint64_t> loads(8);
  for (uint64_t i = 0; i < 8000; ++i) ++loads[policy->choose(session(i), engines(loads))];
  EXPECT_LE(*std::ranges::max_element(loads) - *std::ranges::min_element(loads), 8U);
}

TEST(EveryCountingPolicy, ContinuesWhereTheSavedPolicyStopped) {
  for (const std::string name : {"round_robin", "random", "power_of_two"}) {
    auto one = make_route_policy(name), other = make_route_policy(name);
    for (uint64_t i = 0; i < 7; ++i) one->choose(session(i), engines({0, 0, 0, 0, 0}));
    ASSERT_TRUE(other->restore(one->state()).ok());
    for (uint64_t i = 0; i < 20; ++i)
      EXPECT_EQ(one->choose(session(i), engines({0, 0, 0, 0, 0})),
                other->choose(session(i), engines({0, 0, 0, 0, 0})));
    EXPECT_FALSE(other->restore("seven").ok());
  }
}

TEST(RoundRobin, TakesTurns) {
  auto policy = make_route_policy("round_robin");
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(policy->choose(session(1), engines({0, 0, 0})), i % 3);
}

TEST(Cost, LeavesAnEngineWhoseQueueOutweighsThePrefix) {
  auto policy = make_route_policy("cost");
  EXPECT_EQ(policy->choose(session(1, 0), engines({1, 0})), 0U);
  EXPECT_EQ(policy->choose(session(1, 0), engines({9, 0})), 1U);
}

TEST(CacheAware, IsTheOnlyPolicyThatUsesKnownTokens) {
  for (const auto& name : names_of_policies())
    EXPECT_EQ(make_route_policy(name)->wants_known_tokens(), name == "cache_aware");
}

TEST(CacheAware, FollowsTheLongestPrefixWhileLoadsAreAlike) {
  auto policy = make_route_policy("cache_aware");
  EXPECT_EQ(policy->choose(with_known({0, 64, 32}), engines({0, 9, 1})), 1U);
  // Of equal prefixes, the engine with fewer requests.
  EXPECT_EQ(policy->choose(with_known({64, 0, 64}), engines({9, 0, 8})), 2U);
  EXPECT_EQ(policy->choose(with_known({0, 0, 0}), engines({9, 3, 8})), 1U);
}

TEST(CacheAware, LeavesThePrefixWhenLoadsDifferMuch) {
  auto policy = make_route_policy("cache_aware");
  EXPECT_EQ(policy->choose(with_known({64, 0}), engines({33, 1})), 0U) << "at the limit";
  EXPECT_EQ(policy->choose(with_known({64, 0}), engines({34, 1})), 1U) << "one past it";
}

TEST(CacheAware, ADifferenceThatIsSmallBesideTheLoadIsNoImbalance) {
  auto policy = make_route_policy("cache_aware");
  // 40 more than 400 is not imbalanced, but the engine with the prefix is more than 32 ahead.
  EXPECT_EQ(policy->choose(with_known({64, 32, 0}), engines({440, 432, 400})), 1U);
  EXPECT_EQ(policy->choose(with_known({64, 0, 0}), engines({440, 432, 400})), 2U);
}

}  // namespace
}  // namespace primerl
