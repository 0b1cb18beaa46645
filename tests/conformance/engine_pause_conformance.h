/// The guarantees of every Engine about a pause, as tests over a factory; the engine is wrapped as
/// in a run. Included by engine_conformance.h.
#pragma once

#include "kernels/engine/observed_engine.h"
#include "tests/conformance/engine_under_test.h"

namespace primerl {

/// Calls step() although the engine has no work.
inline void insist(Engine& engine) {
  EXPECT_FALSE(engine.has_work());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(engine.step().ok());
}

TEST_P(EngineConformance, APauseChangesNoTokenWhereverItComes) {
  auto plain = make();
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(plain->submit(request(id, 6)).ok());
  const Ends want = finish_all(*plain);
  for (int before = 0; before < 8; ++before) {
    ObservedEngine paused(make());
    Engine* engine = &paused;
    Ends got;
    for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(engine->submit(request(id, 6)).ok());
    for (int i = 0; i < before && engine->has_work(); ++i) {
      ASSERT_TRUE(engine->step().ok());
      collect(*engine, got);
    }
    const auto stood = engine->state();
    const size_t num_ended = got.size();
    engine->set_paused(true);
    insist(*engine);
    collect(*engine, got);
    EXPECT_EQ(got.size(), num_ended);
    EXPECT_EQ(engine->state().num_decode_tokens, stood.num_decode_tokens);
    EXPECT_EQ(engine->state().num_prefill_tokens, stood.num_prefill_tokens);
    EXPECT_EQ(engine->state().num_free_blocks, stood.num_free_blocks);
    engine->set_paused(false);
    got.merge(finish_all(*engine));
    ASSERT_EQ(got.size(), want.size()) << before << " steps before";
    for (const auto& [id, end] : want) {
      EXPECT_EQ(got[id].tokens, end.tokens) << before << " steps before";
      expect_same(got[id].logprobs, end.logprobs);
      expect_whole(got[id]);
    }
    EXPECT_EQ(engine->state().num_recomputed_tokens, 0U);
  }
}

TEST_P(EngineConformance, APausedEngineTakesEveryOtherCall) {
  ObservedEngine paused(make());
  Engine* engine = &paused;
  Ends ends;
  ASSERT_TRUE(engine->submit(request(1, 6)).ok());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(engine->step().ok());
    collect(*engine, ends);
  }
  engine->set_paused(true);
  EXPECT_TRUE(engine->submit(request(2, 6)).ok());
  EXPECT_TRUE(engine->submit(request(3, 6)).ok());
  EXPECT_TRUE(apply(*engine, WeightsKey{TenantSlot(0)}, 1).ok());
  engine->abort(SequenceId(2));
  insist(*engine);
  collect(*engine, ends);
  ASSERT_EQ(ends.count(2), 1U);
  EXPECT_EQ(ends[2].reason, FinishReason::kCancelled);
  engine->set_paused(false);
  ends.merge(finish_all(*engine));
  ASSERT_EQ(ends.size(), 3U);
  EXPECT_EQ(ends[1].spans.size(), 2U) << "both versions made some of its tokens";
  EXPECT_EQ(ends[3].spans.size(), 1U);
  for (const uint64_t id : {1, 3}) expect_whole(ends[id]);
  expect_idle(*engine);
}

TEST_P(EngineConformance, AnAbortOfAPausedSequenceGivesItsBlocksBackAtOnce) {
  ObservedEngine paused(make());
  Engine* engine = &paused;
  Ends ends;
  ASSERT_TRUE(engine->submit(request(1, 20)).ok());
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(engine->step().ok());
    collect(*engine, ends);
  }
  engine->set_paused(true);
  engine->abort(SequenceId(1));
  expect_idle(*engine);
}

}  // namespace primerl
