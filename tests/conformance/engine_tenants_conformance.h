/// The guarantees of every Engine for keys that are dropped (Engine::drop()). Included by
/// engine_conformance.h.
#pragma once

#include <set>

#include "tests/conformance/engine_under_test.h"

namespace primerl {

TEST_P(EngineConformance, ADroppedKeyHasNoVersionAndNoCachedToken) {
  EngineOptions options;
  options.block_size = 4;
  auto engine = make(options);
  auto one = request(1, 4, 17);
  one.salt = "main:1";
  ASSERT_TRUE(apply(*engine, {}, 1).ok());
  const auto first = run_one(*engine, one);
  EXPECT_EQ(run_one(*engine, one).num_cached_tokens, 16) << "the test needs a cached prefix";
  engine->drop({});
  EXPECT_TRUE(engine->state().versions.empty());
  expect_idle(*engine);
  ASSERT_TRUE(apply(*engine, {}, 1).ok());
  EXPECT_EQ(engine->state().versions.list().size(), 1U);
  const auto after = run_one(*engine, one);
  EXPECT_EQ(after.num_cached_tokens, 0);
  EXPECT_EQ(after.tokens, first.tokens);
  expect_same(after.logprobs, first.logprobs);
}

TEST_P(EngineConformance, TheSequencesOfADroppedKeyEndAsCancelledInAnyState) {
  EngineOptions options;
  options.max_running = 2;
  auto engine = make(options);
  ASSERT_TRUE(apply(*engine, {}, 1).ok());
  for (const uint64_t id : {4, 3, 2, 1}) ASSERT_TRUE(engine->submit(request(id, 30)).ok());
  for (int step = 0; step < 5; ++step) ASSERT_TRUE(engine->step().ok());
  const auto prefilled = engine->take_prefilled();
  ASSERT_GE(prefilled.size(), 2U);
  ASSERT_TRUE(engine->take_over(prefilled.front().id).ok());  // one runs, one is held, two wait
  ASSERT_TRUE(engine->step().ok());
  engine->drop({});
  std::set<uint64_t> ended;
  for (const FinishEvent& end : engine->take_finished()) {
    EXPECT_EQ(end.reason, FinishReason::kCancelled);
    ended.insert(end.id.value);
  }
  EXPECT_EQ(ended, (std::set<uint64_t>{1, 2, 3, 4}));
  EXPECT_FALSE(engine->take_over(prefilled.back().id).ok());
  expect_idle(*engine);
  ASSERT_TRUE(apply(*engine, {}, 1).ok());
  EXPECT_EQ(run_one(*engine, request(5)).tokens.size(), 8U);
}

TEST_P(EngineConformance, DroppingAnUnknownKeyChangesNothing) {
  auto engine = make(), other = make();
  for (Engine* each : {engine.get(), other.get()}) ASSERT_TRUE(apply(*each, {}, 1).ok());
  engine->drop({TenantSlot(3), AdapterId(2)});
  engine->drop({TenantSlot(0), AdapterId(1)});
  EXPECT_EQ(engine->state().versions, other->state().versions);
  const auto got = run_one(*engine, request(1)), want = run_one(*other, request(1));
  EXPECT_EQ(got.tokens, want.tokens);
  expect_same(got.logprobs, want.logprobs);
  engine->drop({});
  engine->drop({});
  EXPECT_TRUE(engine->state().versions.empty());
}

TEST_P(EngineConformance, AnEngineOfWholeWeightsServesATenantAfterAnother) {
  auto engine = make();
  for (uint32_t slot = 0; slot < 3; ++slot) {
    const WeightsKey key{TenantSlot(slot)};
    ASSERT_TRUE(apply(*engine, key, 1).ok()) << to_string(key);
    auto one = request(slot + 1);
    one.tenant = key.tenant;
    EXPECT_EQ(run_one(*engine, one).tokens.size(), 8U);
    engine->drop(key);
  }
  expect_idle(*engine);
}

/// More than an engine may have at once.
TEST_P(EngineConformance, TenThousandUsesOfASlotGrowNothing) {
  auto engine = make();
  const bool has_adapters = GetParam().tenants_max > 1;
  const uint32_t num_uses = has_adapters ? 10'000 : 20;
  for (uint32_t use = 0; use < num_uses; ++use) {
    const WeightsKey key{TenantSlot(0), AdapterId(has_adapters ? use : 0)};
    ASSERT_TRUE(apply(*engine, key, 1).ok()) << use;
    EXPECT_EQ(engine->state().versions.list().size(), 1U);
    engine->drop(key);
  }
  EXPECT_TRUE(engine->state().versions.empty());
  expect_idle(*engine);
}

TEST_P(EngineConformance, ANeighbourOfADroppedKeyKeepsItsTokensAndItsCache) {
  if (GetParam().tenants_max < 2) GTEST_SKIP() << "it holds the weights of one tenant";
  EngineOptions options;
  options.block_size = 4;
  auto engine = make(options), alone = make(options);
  const WeightsKey stays{TenantSlot(1)}, goes{TenantSlot(0)};
  auto mine = request(1, 20, 17);
  mine.tenant = stays.tenant;
  mine.salt = "main:1";
  ASSERT_TRUE(apply(*alone, stays, 1).ok());
  const auto expected = run_one(*alone, mine);
  for (const WeightsKey key : {stays, goes}) ASSERT_TRUE(apply(*engine, key, 1).ok());
  ASSERT_TRUE(engine->submit(mine).ok());
  ASSERT_TRUE(engine->submit(request(2, 30)).ok());
  Ends ends;
  for (int step = 0; step < 6; ++step) {
    ASSERT_TRUE(engine->step().ok());
    collect(*engine, ends);
  }
  engine->drop(goes);
  for (auto& [id, end] : finish_all(*engine)) ends.emplace(id, std::move(end));
  EXPECT_EQ(ends[2].reason, FinishReason::kCancelled);
  EXPECT_EQ(ends[1].tokens, expected.tokens);
  expect_same(ends[1].logprobs, expected.logprobs);
  EXPECT_EQ(run_one(*engine, mine).num_cached_tokens, 16);
  EXPECT_EQ(engine->state().versions.of(stays), PolicyVersion(1));
}

}  // namespace primerl
