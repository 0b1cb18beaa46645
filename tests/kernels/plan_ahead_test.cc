// Steps that are planned before the tokens of the step in progress are known: their content, and
// how ended sequences are handled. Random lives: plan_ahead_lives_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/kernels/scheduler_steps.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int32_t kAheadEos = 1;  // of make_scheduler()

/// Sequences 1 to `count` run, with one token each.
BatchScheduler running(int32_t count, int32_t max_tokens, EngineOptions options = {},
                       int32_t num_prompt_tokens = 5) {
  auto scheduler = make_scheduler(options);
  for (int32_t id = 1; id <= count; ++id)
    EXPECT_TRUE(
        scheduler.submit(make_request(static_cast<uint64_t>(id), num_prompt_tokens, max_tokens))
            .ok());
  for (int i = 0; i < 100 && scheduler.state().num_running < count; ++i) {
    take_step(scheduler);
    take_over_all(scheduler);
  }
  EXPECT_EQ(scheduler.state().num_running, count);
  return scheduler;
}

/// Two steps in progress.
struct StepPair {
  explicit StepPair(BatchScheduler& of) : scheduler(of) {
    EXPECT_TRUE(scheduler.plan(first));
    EXPECT_TRUE(scheduler.plan_ahead(second));
  }
  void take(const StepPlan& plan, const std::vector<int32_t>& tokens) const {
    ASSERT_EQ(plan.samples.size(), tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i)
      scheduler.accept(*plan.samples[i].sequence, tokens[i], -1);
    scheduler.finish_step();
  }

  BatchScheduler& scheduler;
  StepPlan first, second;
};

TEST(PlanAhead, NamesUnknownTokensByTheirSampleIndex) {
  auto scheduler = running(3, 8);
  StepPair steps(scheduler);
  EXPECT_THAT(steps.first.rows.tokens, ElementsAre(7, 7, 7));
  EXPECT_THAT(steps.first.rows.positions, ElementsAre(5, 5, 5));
  EXPECT_THAT(steps.second.rows.tokens,
              ElementsAre(token_of_sample(0), token_of_sample(1), token_of_sample(2)));
  EXPECT_THAT(steps.second.rows.positions, ElementsAre(6, 6, 6));
  EXPECT_EQ(token_of_sample(token_of_sample(2)), 2);
  steps.take(steps.first, {20, 21, 22});
  steps.take(steps.second, {23, 24, 25});
  StepPlan third;
  ASSERT_TRUE(scheduler.plan(third));
  EXPECT_THAT(third.rows.tokens, ElementsAre(23, 24, 25));
  EXPECT_THAT(third.rows.positions, ElementsAre(7, 7, 7));
}

TEST(PlanAhead, ASequenceThatJoinedMeanwhileHasAKnownToken) {
  auto scheduler = running(2, 8);
  ASSERT_TRUE(scheduler.submit(make_request(3, 5, 8)).ok());
  take_step(scheduler, 30);  // the first token of the third
  StepPair steps(scheduler);
  steps.take(steps.first, {20, 21});
  take_over_all(scheduler);
  StepPlan third;
  ASSERT_TRUE(scheduler.plan_ahead(third));
  EXPECT_THAT(third.rows.tokens, ElementsAre(token_of_sample(0), token_of_sample(1), 30));
}

TEST(PlanAhead, ASequenceThatEndsWithMaxTokensHasNoRow) {
  auto scheduler = running(2, 3);
  take_step(scheduler);
  StepPlan last, none;
  ASSERT_TRUE(scheduler.plan(last));
  EXPECT_FALSE(scheduler.plan_ahead(none)) << "no sequence continues";
  for (const auto& sample : last.samples) scheduler.accept(*sample.sequence, 7, -1);
  scheduler.finish_step();
  EXPECT_THAT(scheduler.take_finished(), SizeIs(2));
  EXPECT_FALSE(scheduler.has_work());
}

TEST(PlanAhead, APromptThatMayAdvanceIsPlannedWithKnownTokens) {
  auto scheduler = running(2, 8);
  StepPlan plan, next;
  ASSERT_TRUE(scheduler.plan(plan));
  ASSERT_TRUE(scheduler.submit(make_request(3, 5, 8)).ok());
  EXPECT_FALSE(scheduler.plan_ahead(next));
  for (const auto& sample : plan.samples) scheduler.accept(*sample.sequence, 7, -1);
  scheduler.finish_step();
  ASSERT_TRUE(scheduler.plan(next));
  EXPECT_EQ(next.rows.num_rows(), 2 + 5);
}

TEST(PlanAhead, AWaitingSequenceDoesNotDelayTheOthers) {
  auto scheduler = running(2, 8, {.max_running = 2});
  ASSERT_TRUE(scheduler.submit(make_request(3, 5, 8)).ok());
  StepPair steps(scheduler);
  EXPECT_EQ(steps.second.rows.num_rows(), 2);
}

TEST(PlanAhead, PreemptsNoSequence) {
  // Two blocks each store 5 prompt tokens and 3 more; one block is left for two ninth tokens.
  auto scheduler = running(2, 8, {.kv_blocks = 5, .block_size = 4});
  const StepPair steps(scheduler);
  steps.take(steps.first, {7, 7});
  StepPlan third, fourth;
  ASSERT_TRUE(scheduler.plan_ahead(third));
  steps.take(steps.second, {7, 7});
  EXPECT_FALSE(scheduler.plan_ahead(fourth));
  steps.take(third, {7, 7});
  EXPECT_EQ(scheduler.state().num_preemptions, 0U);
  EXPECT_EQ(scheduler.state().num_free_blocks, 1);
  EXPECT_THAT(run_to_end(scheduler), SizeIs(2));
  EXPECT_GT(scheduler.state().num_preemptions, 0U);
  expect_all_free(scheduler);
}

TEST(PlanAhead, TheTokenOfAnEndedSequenceIsDiscarded) {
  auto scheduler = running(2, 8);
  StepPair steps(scheduler);
  steps.take(steps.first, {kAheadEos, 21});
  const auto ends = scheduler.take_finished();
  ASSERT_THAT(ends, SizeIs(1));
  EXPECT_EQ(ends[0].reason, FinishReason::kStop);
  EXPECT_THAT(ends[0].tokens, ElementsAre(7, kAheadEos));
  EXPECT_TRUE(scheduler.has_work());
  steps.take(steps.second, {40, 22});
  EXPECT_THAT(scheduler.take_finished(), IsEmpty());
  EXPECT_EQ(scheduler.state().num_decode_tokens, 2U + 2 + 1);
  scheduler.abort(SequenceId(2));
  EXPECT_THAT(scheduler.take_finished().at(0).tokens, ElementsAre(7, 21, 22));
  expect_all_free(scheduler);
  EXPECT_FALSE(scheduler.has_work());
}

TEST(PlanAhead, AnAbortedIdMayBeUsedAgainWhileItsRowIsUnderWay) {
  auto scheduler = running(1, 8);
  StepPair steps(scheduler);
  steps.take(steps.first, {20});
  scheduler.abort(SequenceId(1));
  expect_all_free(scheduler);
  EXPECT_TRUE(scheduler.has_work()) << "a step is in progress";
  ASSERT_TRUE(scheduler.submit(make_request(1, 5, 2)).ok());
  steps.take(steps.second, {21});
  const auto ends = run_to_end(scheduler);
  ASSERT_THAT(ends, SizeIs(2));
  EXPECT_THAT(ends[0].tokens, ElementsAre(7, 20));
  EXPECT_EQ(ends[0].reason, FinishReason::kCancelled);
  EXPECT_THAT(ends[1].tokens, ElementsAre(7, 7));
}

/// Only then is its token known, and whether its log-probability is finite.
TEST(PlanAhead, ABlockIsNamedWhenItsLastRowIsDone) {
  for (const bool is_aborted : {false, true}) {
    auto scheduler = running(1, 8, {.kv_blocks = 16, .block_size = 4}, 6);
    const auto num_named = [&] { return scheduler.blocks().num_named(); };
    EXPECT_EQ(num_named(), 1);
    StepPair steps(scheduler);  // positions 6 and 7: the second fills a block
    EXPECT_EQ(num_named(), 1);
    steps.take(steps.first, {20});
    EXPECT_EQ(num_named(), 1) << "the row of position 7 is in progress";
    if (is_aborted) scheduler.abort(SequenceId(1));
    steps.take(steps.second, {21});
    EXPECT_EQ(num_named(), is_aborted ? 1 : 2);
  }
}

TEST(PlanAhead, ARowWithNanEndsItsSequenceAndNamesNoBlock) {
  auto scheduler = running(2, 8, {.kv_blocks = 16, .block_size = 4}, 6);
  StepPair steps(scheduler);
  steps.take(steps.first, {20, 21});
  scheduler.accept(*steps.second.samples[0].sequence, 0, std::numeric_limits<float>::quiet_NaN());
  scheduler.accept(*steps.second.samples[1].sequence, 22, -1);
  scheduler.finish_step();
  const auto ends = scheduler.take_finished();
  ASSERT_THAT(ends, SizeIs(1));
  EXPECT_EQ(ends[0].reason, FinishReason::kFailed);
  EXPECT_THAT(ends[0].tokens, ElementsAre(7, 20));
  EXPECT_EQ(scheduler.blocks().num_named(), 2) << "of the other: of the prompt, and this one";
}

TEST(PlanAhead, AFailedStepEndsItsSequencesAndTheNextStepKeepsTheOthers) {
  auto scheduler = running(1, 8);
  ASSERT_TRUE(scheduler.submit(make_request(2, 5, 8)).ok());
  take_step(scheduler, 30);
  StepPlan first, second;
  ASSERT_TRUE(scheduler.plan(first));
  take_over_all(scheduler);
  ASSERT_TRUE(scheduler.plan_ahead(second));
  ASSERT_THAT(second.rows.tokens, ElementsAre(token_of_sample(0), 30));
  scheduler.fail_step(first, "as the test says");
  for (const auto& sample : second.samples) scheduler.accept(*sample.sequence, 31, -1);
  scheduler.finish_step();
  scheduler.abort(SequenceId(2));
  const auto ends = scheduler.take_finished();
  ASSERT_THAT(ends, SizeIs(2));
  EXPECT_EQ(ends[0].reason, FinishReason::kFailed);
  EXPECT_EQ(ends[0].detail, "as the test says");
  EXPECT_THAT(ends[1].tokens, ElementsAre(30, 31));
  expect_all_free(scheduler);
}

}  // namespace
}  // namespace primerl
