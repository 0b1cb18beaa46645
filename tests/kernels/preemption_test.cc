// Blocks run out: who loses them, and that nobody loses more.
#include "tests/kernels/scheduler_steps.h"

namespace primerl {
namespace {

TEST(Preemption, TheLastOneWaitsAndGoesOnWhereItWas) {
  auto scheduler = make_scheduler({.kv_blocks = 4, .block_size = 4});
  ASSERT_TRUE(scheduler.submit(make_request(1, 4, 9)).ok());  // 3 blocks in the end
  ASSERT_TRUE(scheduler.submit(make_request(2, 4, 9)).ok());
  take_step(scheduler);
  take_over_all(scheduler);
  for (int i = 0; i < 5; ++i) take_step(scheduler);
  EXPECT_EQ(scheduler.state().num_preemptions, 1U);
  EXPECT_EQ(scheduler.state().num_running, 2) << "both were taken over";
  EXPECT_EQ(take_step(scheduler).rows.num_rows(), 1);
  const auto ends = run_to_end(scheduler);
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_EQ(ends[0].id, SequenceId(1)) << "who came first ends first";
  for (const auto& end : ends) EXPECT_EQ(end.tokens.size(), 9U);
  EXPECT_EQ(scheduler.state().num_preemptions, 1U);
  EXPECT_GT(scheduler.state().num_recomputed_tokens, 0U);
  expect_all_free(scheduler);
}

TEST(Preemption, PriorityComesBeforeArrival) {
  auto scheduler = make_scheduler({.kv_blocks = 4, .block_size = 4});
  auto urgent = make_request(2, 4, 9);
  urgent.priority = -1;
  ASSERT_TRUE(scheduler.submit(make_request(1, 4, 9)).ok());
  ASSERT_TRUE(scheduler.submit(urgent).ok());
  const auto ends = run_to_end(scheduler);
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_EQ(ends[0].id, SequenceId(2));
}

TEST(Preemption, AHeldOneThatIsBehindLosesItsBlocks) {
  auto scheduler = make_scheduler({.kv_blocks = 3, .block_size = 4});
  ASSERT_TRUE(scheduler.submit(make_request(1, 4, 8)).ok());
  ASSERT_TRUE(scheduler.submit(make_request(2, 1, 2)).ok());
  take_step(scheduler);
  EXPECT_EQ(scheduler.take_prefilled().size(), 2U);
  ASSERT_TRUE(scheduler.take_over(SequenceId(1)).ok());
  for (int i = 0; i < 5; ++i) take_step(scheduler);
  EXPECT_EQ(scheduler.state().num_preemptions, 1U);
  EXPECT_EQ(scheduler.state().num_held, 1) << "without blocks, until somebody takes it over";
  ASSERT_TRUE(scheduler.take_over(SequenceId(2)).ok());
  const auto ends = run_to_end(scheduler);
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_EQ(ends[1].tokens.size(), 2U);
  expect_all_free(scheduler);
}

TEST(Preemption, APreemptedOneMayBeAbortedWhereverItIs) {
  for (const uint64_t aborted : {1U, 2U}) {
    auto scheduler = make_scheduler({.kv_blocks = 4, .block_size = 4});
    ASSERT_TRUE(scheduler.submit(make_request(1, 4, 9)).ok());
    ASSERT_TRUE(scheduler.submit(make_request(2, 4, 9)).ok());
    take_step(scheduler);
    take_over_all(scheduler);
    while (scheduler.state().num_preemptions == 0) take_step(scheduler);
    scheduler.abort(SequenceId(aborted));
    EXPECT_EQ(run_to_end(scheduler).size(), 2U);
    expect_all_free(scheduler);
  }
}

TEST(Preemption, AStepThatPreemptsAdmitsNobody) {
  auto scheduler = make_scheduler({.kv_blocks = 4, .block_size = 4});
  for (uint64_t id = 1; id <= 2; ++id) ASSERT_TRUE(scheduler.submit(make_request(id, 4, 9)).ok());
  take_step(scheduler);
  take_over_all(scheduler);
  ASSERT_TRUE(scheduler.submit(make_request(3, 1, 1)).ok());
  StepPlan plan;
  while (scheduler.state().num_preemptions == 0) plan = take_step(scheduler);
  EXPECT_EQ(plan.rows.num_rows(), 1) << "the first alone";
}

TEST(Preemption, FiveTimesAsManyRunAsWithTheirWholeCompletionReserved) {
  // Each may have 8,192 tokens and ends with about 1,024 at most.
  constexpr int32_t kMax = 8192, kBlock = 16;
  EngineOptions options{.kv_blocks = 8 * kMax / kBlock, .block_size = kBlock};
  options.max_sequence_tokens = kMax;
  auto scheduler = make_scheduler(options);
  for (uint64_t id = 1; id <= 200; ++id) {
    auto request = make_request(id, 64, kMax - 64);
    request.sampling.stop_ids = {static_cast<int32_t>(2 + id % 7)};
    ASSERT_TRUE(scheduler.submit(std::move(request)).ok());
  }
  int32_t most = 0;
  for (int i = 0; i < 2000; ++i) {
    // Every 137 steps a seventh of them gets its stop token: after 959 steps all had theirs.
    take_step(scheduler, i % 137 == 136 ? 2 + i / 137 % 7 : 40);
    take_over_all(scheduler);
    most = std::max(most, scheduler.state().num_running);
  }
  EXPECT_GE(most, 5 * 8) << "8 fit with their whole completion reserved";
}

TEST(Preemption, ALongPromptLeavesWhoDecodesMostOfTheStep) {
  auto scheduler = make_scheduler(
      {.kv_blocks = 64, .block_size = 4, .max_batched_tokens = 64, .max_prefill_tokens = 5});
  ASSERT_TRUE(scheduler.submit(make_request(1, 30, 9)).ok());
  EXPECT_EQ(take_step(scheduler).rows.num_rows(), 30) << "nobody decodes yet";
  take_over_all(scheduler);
  ASSERT_TRUE(scheduler.submit(make_request(2, 30, 2)).ok());
  for (int i = 0; i < 6; ++i) EXPECT_EQ(take_step(scheduler).rows.num_rows(), 1 + 5);
}

}  // namespace
}  // namespace primerl
