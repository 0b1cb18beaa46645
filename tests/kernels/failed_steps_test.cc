// Failures: a row with NaN logits ends its sequence, a failed step ends its sequences, and the
// scheduler continues with the others.
#include <limits>

#include "tests/kernels/scheduler_steps.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// A step in which the log-probabilities of sequence `id` are `logprob`.
void take_broken_step(BatchScheduler& scheduler, uint64_t id, float logprob = kNan) {
  StepPlan plan;
  ASSERT_TRUE(scheduler.plan(plan));
  for (const auto& sample : plan.samples)
    scheduler.accept(*sample.sequence, 7, sample.sequence->request.id.value == id ? logprob : -1);
  scheduler.finish_step();
}

TEST(FailedSteps, ARowThatIsNoDistributionEndsItsSequenceAlone) {
  for (const float logprob : {kNan, kInfinity, -kInfinity}) {
    auto scheduler = make_scheduler({});
    for (uint64_t id = 1; id <= 2; ++id) ASSERT_TRUE(scheduler.submit(make_request(id, 5, 8)).ok());
    scheduler.set_version({TenantSlot(0)}, PolicyVersion(42));
    take_step(scheduler);
    take_over_all(scheduler);
    take_broken_step(scheduler, 1, logprob);
    const auto failed = scheduler.take_finished();
    ASSERT_THAT(failed, SizeIs(1));
    EXPECT_EQ(failed[0].id, SequenceId(1));
    EXPECT_EQ(failed[0].reason, FinishReason::kFailed);
    EXPECT_THAT(failed[0].tokens, ElementsAre(7)) << "those before";
    EXPECT_THAT(failed[0].logprobs, SizeIs(1));
    EXPECT_EQ(failed[0].detail,
              "the logits of its token 1 are NaN or infinite, under the weights of version 42");
    const auto ends = run_to_end(scheduler);
    ASSERT_THAT(ends, SizeIs(1));
    EXPECT_EQ(ends[0].reason, FinishReason::kLength);
    EXPECT_EQ(scheduler.state().num_failed, 1U);
    EXPECT_EQ(scheduler.state().num_completed, 1U);
    expect_all_free(scheduler);
  }
}

TEST(FailedSteps, OneThatFailsWithItsFirstTokenEndsWhenItIsTakenOver) {
  auto scheduler = make_scheduler({});
  ASSERT_TRUE(scheduler.submit(make_request(1, 5, 8)).ok());
  take_broken_step(scheduler, 1);
  EXPECT_THAT(scheduler.take_finished(), IsEmpty());
  EXPECT_EQ(scheduler.state().num_failed, 0U) << "it has not ended";
  take_over_all(scheduler);
  const auto ends = scheduler.take_finished();
  ASSERT_THAT(ends, SizeIs(1));
  EXPECT_EQ(ends[0].reason, FinishReason::kFailed);
  EXPECT_TRUE(ends[0].was_prefilled);
  EXPECT_THAT(ends[0].tokens, IsEmpty());
  EXPECT_EQ(scheduler.state().num_failed, 1U);
  expect_all_free(scheduler);
}

TEST(FailedSteps, CancelsRefusalsAndEndedLeasesAreNoFaults) {
  auto scheduler = make_scheduler({});
  EXPECT_FALSE(scheduler.submit(make_request(1, 500, 8)).ok());
  for (uint64_t id = 2; id <= 3; ++id) ASSERT_TRUE(scheduler.submit(make_request(id, 5, 8)).ok());
  take_step(scheduler);
  ASSERT_THAT(scheduler.take_prefilled(), SizeIs(2));
  scheduler.abort(SequenceId(2));
  scheduler.expire(SequenceId(3));
  EXPECT_THAT(scheduler.take_finished(), SizeIs(2));
  EXPECT_EQ(scheduler.state().num_failed, 0U);
  EXPECT_EQ(scheduler.state().num_completed, 0U);
}

/// Its keys may be the cause of the failure, for example if the weights were NaN.
TEST(FailedSteps, NoBlockOfAFailedSequenceIsFound) {
  for (const int32_t num_good_tokens : {0, 4}) {
    auto scheduler = make_scheduler({.kv_blocks = 16, .block_size = 4});
    ASSERT_TRUE(scheduler.submit(make_request(1, 9, 8, "a:3")).ok());
    for (int i = 0; i < num_good_tokens; ++i) take_step(scheduler), take_over_all(scheduler);
    take_broken_step(scheduler, 1);
    take_over_all(scheduler);
    ASSERT_THAT(scheduler.take_finished(), SizeIs(1));
    ASSERT_TRUE(scheduler.submit(make_request(2, 9, 1, "a:3")).ok());
    EXPECT_EQ(take_step(scheduler).rows.num_rows(), 9) << num_good_tokens;
  }
}

/// No row has checked that its keys are finite. Blocks found before it stay findable.
TEST(FailedSteps, NoBlockOfAnAbortedPromptIsFound) {
  auto scheduler = make_scheduler({.kv_blocks = 32, .block_size = 4, .max_batched_tokens = 8});
  ASSERT_TRUE(scheduler.submit(make_request(1, 5, 1, "a:3")).ok());
  (void)take_step(scheduler);
  take_over_all(scheduler);
  ASSERT_THAT(scheduler.take_finished(), SizeIs(1));
  ASSERT_TRUE(scheduler.submit(make_request(2, 17, 8, "a:3")).ok());
  EXPECT_EQ(take_step(scheduler).rows.num_rows(), 8) << "after the 4 that were found";
  scheduler.abort(SequenceId(2));
  ASSERT_THAT(scheduler.take_finished(), SizeIs(1));
  expect_all_free(scheduler);
  ASSERT_TRUE(scheduler.submit(make_request(3, 17, 1, "a:3")).ok());
  EXPECT_EQ(take_step(scheduler).rows.num_rows(), 8);
  take_step(scheduler);
  take_over_all(scheduler);
  const auto ends = scheduler.take_finished();
  ASSERT_THAT(ends, SizeIs(1));
  EXPECT_EQ(ends[0].num_cached_tokens, 4);
}

/// Sequences that share the prompt continue with it.
TEST(FailedSteps, AnAbortDoesNotEndASharedPrompt) {
  auto scheduler = make_scheduler({.kv_blocks = 32, .block_size = 4, .max_batched_tokens = 8});
  for (uint64_t id = 1; id <= 2; ++id)
    ASSERT_TRUE(scheduler.submit(make_request(id, 17, 1, "a:3")).ok());
  take_step(scheduler);
  scheduler.abort(SequenceId(1));
  ASSERT_THAT(scheduler.take_finished(), SizeIs(1));
  EXPECT_EQ(take_step(scheduler).rows.num_rows(), 8) << "the first 8 are kept";
}

TEST(FailedSteps, AFailedStepEndsThoseItWasForAndNoOthers) {
  auto scheduler = make_scheduler({.kv_blocks = 16, .block_size = 4, .max_batched_tokens = 6});
  ASSERT_TRUE(scheduler.submit(make_request(1, 4, 8)).ok());
  take_step(scheduler);
  take_over_all(scheduler);
  ASSERT_TRUE(scheduler.submit(make_request(2, 9, 3)).ok());  // two steps beside the first
  ASSERT_TRUE(scheduler.submit(make_request(3, 4, 3)).ok());
  StepPlan plan;
  ASSERT_TRUE(scheduler.plan(plan));
  scheduler.fail_step(plan, "no memory");
  const auto first = scheduler.take_finished();
  ASSERT_THAT(first, SizeIs(1));
  EXPECT_EQ(first[0].id, SequenceId(1));
  EXPECT_EQ(first[0].reason, FinishReason::kFailed);
  EXPECT_EQ(first[0].detail, "no memory");
  EXPECT_EQ(scheduler.state().num_waiting, 1) << "the third";
  take_over_all(scheduler);
  const auto second = scheduler.take_finished();
  ASSERT_THAT(second, SizeIs(1));
  EXPECT_EQ(second[0].id, SequenceId(2));
  EXPECT_EQ(second[0].reason, FinishReason::kFailed);
  const auto rest = run_to_end(scheduler);
  ASSERT_THAT(rest, SizeIs(1));
  EXPECT_EQ(rest[0].reason, FinishReason::kLength);
  EXPECT_EQ(scheduler.state().num_failed, 2U);
  expect_all_free(scheduler);
}

TEST(FailedSteps, AllOfAGroupFailWithThePromptTheyWaitFor) {
  auto scheduler = make_scheduler({.max_batched_tokens = 3});
  for (uint64_t id = 1; id <= 5; ++id)
    ASSERT_TRUE(scheduler.submit(make_request(id, 4, 2, "one")).ok());
  take_step(scheduler);
  StepPlan plan;
  ASSERT_TRUE(scheduler.plan(plan));
  const auto num_begun = scheduler.state().num_waiting;
  scheduler.fail_step(plan, "no memory");
  EXPECT_LT(scheduler.state().num_waiting, num_begun);
  const auto ends = [&] {
    take_over_all(scheduler);
    return run_to_end(scheduler);
  }();
  EXPECT_THAT(ends, SizeIs(5));
  EXPECT_EQ(scheduler.state().num_failed + scheduler.state().num_completed, 5U);
  EXPECT_GT(scheduler.state().num_failed, 0U);
  expect_all_free(scheduler);
}

/// It is admitted in the step that fails, too late for its own row: the blocks that it found there
/// were never written.
TEST(FailedSteps, APromptThatOnlyFoundBlocksOfTheStepStartsAgain) {
  auto scheduler = make_scheduler({.kv_blocks = 16, .block_size = 1, .max_batched_tokens = 2});
  for (uint64_t id = 1; id <= 2; ++id)
    ASSERT_TRUE(scheduler.submit(make_request(id, 1, 4, "salt")).ok());
  ASSERT_TRUE(scheduler.submit(make_request(3, 2, 4, "salt")).ok());
  StepPlan plan;
  ASSERT_TRUE(scheduler.plan(plan));
  ASSERT_THAT(plan.samples, SizeIs(2)) << "of one row; no third may be sampled";
  ASSERT_EQ(plan.rows.num_rows(), 1);
  ASSERT_EQ(scheduler.blocks().num_free(), 14) << "the third has found one and allocated one";
  scheduler.fail_step(plan, "as the test says");
  const StepPlan next = take_step(scheduler);
  ASSERT_THAT(next.rows.spans, SizeIs(1));
  EXPECT_EQ(next.rows.spans[0].num_cached, 0) << "from its first token";
  take_over_all(scheduler);
  const auto ends = run_to_end(scheduler);
  ASSERT_THAT(ends, SizeIs(3));
  EXPECT_EQ(ends.back().id, SequenceId(3));
  EXPECT_EQ(ends.back().tokens.size(), 4U);
  expect_all_free(scheduler);
}

}  // namespace
}  // namespace primerl
