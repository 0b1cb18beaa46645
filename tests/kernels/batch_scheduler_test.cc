#include "kernels/engine/batch_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace primerl {
namespace {

using ::testing::ElementsAre;

BatchScheduler make(EngineOptions options) {
  if (options.max_sequence_tokens == 0) options.max_sequence_tokens = 100;
  return BatchScheduler({options, 50, {1}});
}

SequenceRequest request(uint64_t id, int32_t num_prompt_tokens, int32_t max_tokens) {
  SequenceRequest made;
  made.id = SequenceId(id);
  for (int32_t i = 0; i < num_prompt_tokens; ++i) made.prompt_tokens.push_back(10 + i);
  made.sampling.max_tokens = max_tokens;
  return made;
}

/// One step in which every sampled token is `token`.
StepPlan step(BatchScheduler& scheduler, int32_t token = 7) {
  StepPlan plan;
  if (!scheduler.plan(plan)) return plan;
  for (const auto& sample : plan.samples)
    scheduler.accept(*sample.sequence, token, -1, PolicyVersion(0));
  scheduler.finish_step();
  return plan;
}

void take_over_all(BatchScheduler& scheduler) {
  for (const auto& event : scheduler.take_prefilled())
    ASSERT_TRUE(scheduler.take_over(event.id).ok());
}

TEST(BatchScheduler, CutsAPromptIntoChunksOfTheStep) {
  auto scheduler = make({.max_batched_tokens = 4});
  ASSERT_TRUE(scheduler.submit(request(1, 6, 5)).ok());
  auto plan = step(scheduler);
  EXPECT_THAT(plan.rows.tokens, ElementsAre(10, 11, 12, 13));
  EXPECT_TRUE(plan.samples.empty());
  plan = step(scheduler);
  EXPECT_THAT(plan.rows.tokens, ElementsAre(14, 15));
  EXPECT_THAT(plan.rows.positions, ElementsAre(4, 5));
  ASSERT_EQ(plan.rows.spans.size(), 1U);
  EXPECT_EQ(plan.rows.spans[0].num_cached, 4);
  ASSERT_EQ(plan.samples.size(), 1U);
  EXPECT_EQ(plan.samples[0].row, 1);
}

TEST(BatchScheduler, DecodesBeforeItPrefills) {
  auto scheduler = make({.max_batched_tokens = 4});
  ASSERT_TRUE(scheduler.submit(request(1, 2, 5)).ok());
  step(scheduler);
  take_over_all(scheduler);
  ASSERT_TRUE(scheduler.submit(request(2, 9, 5)).ok());
  const auto plan = step(scheduler);
  EXPECT_THAT(plan.rows.tokens, ElementsAre(7, 10, 11, 12));
  EXPECT_THAT(plan.rows.positions, ElementsAre(2, 0, 1, 2));
}

TEST(BatchScheduler, GivesSequencesDifferentCacheRows) {
  auto scheduler = make({.kv_blocks = 4, .block_size = 4});
  ASSERT_TRUE(scheduler.submit(request(1, 5, 3)).ok());
  ASSERT_TRUE(scheduler.submit(request(2, 5, 3)).ok());
  const auto plan = step(scheduler);
  std::set<int32_t> rows(plan.rows.cache_rows.begin(), plan.rows.cache_rows.end());
  EXPECT_EQ(rows.size(), 10U);
  EXPECT_LT(*rows.rbegin(), 16);
  EXPECT_EQ(scheduler.state().num_free_blocks, 0);
}

TEST(BatchScheduler, AdmitsInOrderAndOnlyWhatFits) {
  auto scheduler = make({.kv_blocks = 4, .block_size = 4});
  ASSERT_TRUE(scheduler.submit(request(1, 5, 7)).ok());  // 3 blocks
  ASSERT_TRUE(scheduler.submit(request(2, 5, 3)).ok());  // 2 blocks: must wait
  ASSERT_TRUE(scheduler.submit(request(3, 1, 1)).ok());  // 1 block: not before 2
  const auto plan = step(scheduler);
  EXPECT_EQ(plan.rows.num_rows(), 5);
  EXPECT_EQ(scheduler.state().num_waiting, 2);
  EXPECT_FALSE(scheduler.has_work()) << "everything waits for take_over";
  take_over_all(scheduler);
  EXPECT_TRUE(scheduler.has_work());
}

TEST(BatchScheduler, RunsAtMostMaxRunning) {
  auto scheduler = make({.max_running = 2});
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(scheduler.submit(request(id, 2, 2)).ok());
  step(scheduler);
  EXPECT_EQ(scheduler.state().num_held, 2);
  take_over_all(scheduler);
  EXPECT_EQ(step(scheduler).rows.num_rows(), 2);
  EXPECT_EQ(scheduler.take_finished().size(), 2U);
  EXPECT_EQ(step(scheduler).rows.num_rows(), 2) << "the third prompt";
}

TEST(BatchScheduler, AnAbortInTheMiddleOfAPromptFreesItsBlocks) {
  auto scheduler = make({.max_batched_tokens = 4});
  ASSERT_TRUE(scheduler.submit(request(1, 9, 3)).ok());
  step(scheduler);
  EXPECT_LT(scheduler.state().num_free_blocks, scheduler.state().num_blocks);
  scheduler.abort(SequenceId(1));
  EXPECT_EQ(scheduler.state().num_free_blocks, scheduler.state().num_blocks);
  EXPECT_FALSE(scheduler.has_work());
  EXPECT_EQ(scheduler.take_finished().size(), 1U);
}

TEST(BatchScheduler, EndsAtTheEndOfSequenceToken) {
  auto scheduler = make({});
  ASSERT_TRUE(scheduler.submit(request(1, 2, 5)).ok());
  step(scheduler);
  take_over_all(scheduler);
  step(scheduler, 1);
  const auto ends = scheduler.take_finished();
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].reason, FinishReason::kStop);
  EXPECT_THAT(ends[0].tokens, ElementsAre(7, 1));
}

}  // namespace
}  // namespace primerl
