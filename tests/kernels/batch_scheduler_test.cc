#include "kernels/engine/batch_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kernels/engine/kept_sets.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;

BatchScheduler make(EngineOptions options) {
  if (options.max_sequence_tokens == 0) options.max_sequence_tokens = 100;
  return BatchScheduler({options, 50, {1}});
}

/// `salt` tells prompts of equal length apart.
SequenceRequest request(uint64_t id, int32_t num_prompt_tokens, int32_t max_tokens,
                        const std::string& salt = "") {
  SequenceRequest made;
  made.id = SequenceId(id);
  made.salt = salt.empty() ? std::to_string(id) : salt;
  for (int32_t i = 0; i < num_prompt_tokens; ++i) made.prompt_tokens.push_back(10 + i);
  made.sampling.max_tokens = max_tokens;
  return made;
}

/// One step in which every sampled token is `token`.
StepPlan step(BatchScheduler& scheduler, int32_t token = 7) {
  StepPlan plan;
  if (!scheduler.plan(plan)) return plan;
  for (const auto& sample : plan.samples) scheduler.accept(*sample.sequence, token, -1);
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

TEST(BatchScheduler, HandsTheKeptSetsOverWithTheTokens) {
  auto scheduler = make({});
  ASSERT_TRUE(scheduler.submit(request(1, 3, 2)).ok());
  for (int i = 0; i < 2; ++i) {
    StepPlan plan;
    ASSERT_TRUE(scheduler.plan(plan));
    append_kept(std::vector{7, 9 + i}, 50, plan.samples.at(0).sequence->kept);
    scheduler.accept(*plan.samples[0].sequence, 7, -1);
    scheduler.finish_step();
    take_over_all(scheduler);
  }
  const auto ended = scheduler.take_finished();
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_TRUE(check_kept(ended[0].kept.bytes(), ended[0].tokens, 50).ok());
}

TEST(BatchScheduler, EndsASequenceWhoseKeptSetsAreOneByteTooMany) {
  auto scheduler = make({});
  ASSERT_TRUE(scheduler.submit(request(1, 3, 9)).ok());
  step(scheduler);
  take_over_all(scheduler);
  const auto decode_with = [&](size_t num_kept_bytes) {
    StepPlan plan;
    ASSERT_TRUE(scheduler.plan(plan));
    plan.samples.at(0).sequence->kept.resize(num_kept_bytes);
    scheduler.accept(*plan.samples[0].sequence, 7, -1);
    scheduler.finish_step();
  };
  decode_with(kKeptBytesMax);
  EXPECT_TRUE(scheduler.take_finished().empty());
  decode_with(kKeptBytesMax + 1);
  const auto ended = scheduler.take_finished();
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended[0].reason, FinishReason::kRefused);
  EXPECT_THAT(ended[0].detail, ::testing::HasSubstr("the kept sets of 3 tokens have 67108865"));
  EXPECT_TRUE(ended[0].kept.empty());
  EXPECT_EQ(scheduler.state().num_free_blocks, scheduler.state().num_blocks);
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

TEST(BatchScheduler, AGroupComputesItsPromptOnce) {
  auto scheduler = make({.kv_blocks = 8, .block_size = 4});
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(scheduler.submit(request(id, 5, 3, "g")).ok());
  const auto plan = step(scheduler);
  EXPECT_EQ(plan.rows.num_rows(), 5);
  ASSERT_EQ(plan.samples.size(), 4U);
  for (const auto& sample : plan.samples) EXPECT_EQ(sample.row, 4);
  EXPECT_EQ(scheduler.state().num_held, 4);
  // 2 blocks of prompt, whose 3 spare rows serve the first; 1 block for each of the others.
  EXPECT_EQ(scheduler.state().num_free_blocks, 3);
  EXPECT_EQ(scheduler.state().num_prefill_tokens, 5U);
  const auto events = scheduler.take_prefilled();
  EXPECT_EQ(events[0].num_cached_tokens, 0);
  EXPECT_EQ(events[3].num_cached_tokens, 4);
}

TEST(BatchScheduler, MembersOfAGroupGenerateIntoRowsOfTheirOwn) {
  auto scheduler = make({.kv_blocks = 8, .block_size = 4});
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(scheduler.submit(request(id, 5, 3, "g")).ok());
  const auto prompt = step(scheduler);
  take_over_all(scheduler);
  const auto plan = step(scheduler);
  std::set<int32_t> rows(prompt.rows.cache_rows.begin(), prompt.rows.cache_rows.end());
  rows.insert(plan.rows.cache_rows.begin(), plan.rows.cache_rows.end());
  EXPECT_EQ(rows.size(), 5U + 3);
  for (const auto& span : plan.rows.spans) {
    EXPECT_EQ(span.num_cached, 5);
    const auto first = plan.rows.kv_rows.begin() + span.kv_offset;
    EXPECT_TRUE(std::equal(prompt.rows.cache_rows.begin(), prompt.rows.cache_rows.end(), first));
  }
}

TEST(BatchScheduler, ALateMemberComputesOnlyTheLastToken) {
  auto scheduler = make({});
  ASSERT_TRUE(scheduler.submit(request(1, 5, 3, "g")).ok());
  step(scheduler);
  ASSERT_TRUE(scheduler.submit(request(2, 5, 3, "g")).ok());
  ASSERT_TRUE(scheduler.submit(request(3, 5, 3, "g")).ok());
  const auto plan = step(scheduler);
  EXPECT_THAT(plan.rows.positions, ElementsAre(4));
  EXPECT_EQ(plan.rows.spans[0].num_cached, 4);
  EXPECT_EQ(plan.samples.size(), 2U);
  EXPECT_EQ(scheduler.state().num_held, 3);
}

TEST(BatchScheduler, OtherSaltsTenantsAndVersionsShareNothing) {
  auto scheduler = make({});
  auto other_tenant = request(3, 5, 3, "g");
  other_tenant.tenant = TenantSlot(1);
  ASSERT_TRUE(scheduler.submit(request(1, 5, 3, "g")).ok());
  ASSERT_TRUE(scheduler.submit(request(2, 5, 3, "h")).ok());
  ASSERT_TRUE(scheduler.submit(other_tenant).ok());
  EXPECT_EQ(step(scheduler).rows.num_rows(), 15);
  scheduler.set_version({}, PolicyVersion(1));
  ASSERT_TRUE(scheduler.submit(request(4, 5, 3, "g")).ok());
  EXPECT_EQ(step(scheduler).rows.num_rows(), 5);
}

TEST(BatchScheduler, ThePromptLivesAsLongAsItsLastMember) {
  auto scheduler = make({.max_batched_tokens = 3});
  ASSERT_TRUE(scheduler.submit(request(1, 5, 3, "g")).ok());
  step(scheduler);
  ASSERT_TRUE(scheduler.submit(request(2, 5, 3, "g")).ok());
  scheduler.abort(SequenceId(1));
  EXPECT_EQ(scheduler.state().num_free_blocks, scheduler.state().num_blocks);
  step(scheduler);
  ASSERT_TRUE(scheduler.submit(request(3, 5, 3, "g")).ok());
  EXPECT_EQ(step(scheduler).samples.size(), 2U) << "2 and 3, at the end of one prompt";
  scheduler.abort(SequenceId(2));
  EXPECT_LT(scheduler.state().num_free_blocks, scheduler.state().num_blocks);
  take_over_all(scheduler);
  step(scheduler);
  scheduler.abort(SequenceId(3));
  EXPECT_EQ(scheduler.state().num_free_blocks, scheduler.state().num_blocks);
  EXPECT_FALSE(scheduler.has_work());
}

}  // namespace
}  // namespace primerl
