#include "kernels/engine/batch_scheduler.h"

#include <set>
#include <tuple>

#include "kernels/engine/kept_sets.h"
#include "tests/kernels/scheduler_steps.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::FieldsAre;

TEST(BatchScheduler, CutsAPromptIntoChunksOfTheStep) {
  auto scheduler = make_scheduler({.max_batched_tokens = 4});
  ASSERT_TRUE(scheduler.submit(make_request(1, 6, 5)).ok());
  auto plan = take_step(scheduler);
  EXPECT_THAT(plan.rows.tokens, ElementsAre(10, 11, 12, 13));
  EXPECT_TRUE(plan.samples.empty());
  plan = take_step(scheduler);
  EXPECT_THAT(plan.rows.tokens, ElementsAre(14, 15));
  EXPECT_THAT(plan.rows.positions, ElementsAre(4, 5));
  ASSERT_EQ(plan.rows.spans.size(), 1U);
  EXPECT_EQ(plan.rows.spans[0].num_cached, 4);
  ASSERT_EQ(plan.samples.size(), 1U);
  EXPECT_EQ(plan.samples[0].row, 1);
}

TEST(BatchScheduler, VersionSpansCoverEveryTokenOnce) {
  auto scheduler = make_scheduler({});
  scheduler.set_version({}, PolicyVersion(3));
  ASSERT_TRUE(scheduler.submit(make_request(1, 3, 5)).ok());
  take_step(scheduler);
  take_over_all(scheduler);
  take_step(scheduler);
  scheduler.set_version({}, PolicyVersion(4));
  const auto ends = run_to_end(scheduler);
  ASSERT_EQ(ends.size(), 1U);
  ASSERT_EQ(ends[0].spans.size(), 2U);
  const VersionSpan &before = ends[0].spans[0], &after = ends[0].spans[1];
  EXPECT_THAT(std::tuple(before.version, before.begin, before.end),
              FieldsAre(PolicyVersion(3), 0, 2));
  EXPECT_THAT(std::tuple(after.version, after.begin, after.end), FieldsAre(PolicyVersion(4), 2, 5));
}

TEST(BatchScheduler, ReturnsTheKeptSetsWithTheTokens) {
  auto scheduler = make_scheduler({});
  ASSERT_TRUE(scheduler.submit(make_request(1, 3, 2)).ok());
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
  auto scheduler = make_scheduler({});
  ASSERT_TRUE(scheduler.submit(make_request(1, 3, 9)).ok());
  take_step(scheduler);
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
  auto scheduler = make_scheduler({.max_batched_tokens = 4});
  ASSERT_TRUE(scheduler.submit(make_request(1, 2, 5)).ok());
  take_step(scheduler);
  take_over_all(scheduler);
  ASSERT_TRUE(scheduler.submit(make_request(2, 9, 5)).ok());
  const auto plan = take_step(scheduler);
  EXPECT_THAT(plan.rows.tokens, ElementsAre(7, 10, 11, 12));
  EXPECT_THAT(plan.rows.positions, ElementsAre(2, 0, 1, 2));
}

TEST(BatchScheduler, GivesSequencesDifferentCacheRows) {
  auto scheduler = make_scheduler({.kv_blocks = 5, .block_size = 4});
  ASSERT_TRUE(scheduler.submit(make_request(1, 5, 3)).ok());
  ASSERT_TRUE(scheduler.submit(make_request(2, 5, 3)).ok());
  const auto plan = take_step(scheduler);
  std::set<int32_t> rows(plan.rows.cache_rows.begin(), plan.rows.cache_rows.end());
  EXPECT_EQ(rows.size(), 10U);
  EXPECT_LT(*rows.rbegin(), 20);
  EXPECT_EQ(scheduler.state().num_free_blocks, 1);
}

TEST(BatchScheduler, AdmitsInOrderAndOnlyWhatFits) {
  auto scheduler = make_scheduler({.kv_blocks = 4, .block_size = 4});
  ASSERT_TRUE(scheduler.submit(make_request(1, 5, 7)).ok());  // 2 blocks, and soon 1 more
  ASSERT_TRUE(scheduler.submit(make_request(2, 5, 3)).ok());  // 2 blocks: must wait
  ASSERT_TRUE(scheduler.submit(make_request(3, 1, 1)).ok());  // 1 block: not before 2
  const auto plan = take_step(scheduler);
  EXPECT_EQ(plan.rows.num_rows(), 5);
  EXPECT_EQ(scheduler.state().num_waiting, 2);
  EXPECT_FALSE(scheduler.has_work()) << "everything waits for take_over";
  take_over_all(scheduler);
  EXPECT_TRUE(scheduler.has_work());
}

TEST(BatchScheduler, RunsAtMostMaxRunning) {
  auto scheduler = make_scheduler({.max_running = 2});
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(scheduler.submit(make_request(id, 2, 2)).ok());
  take_step(scheduler);
  EXPECT_EQ(scheduler.state().num_held, 2);
  take_over_all(scheduler);
  EXPECT_EQ(take_step(scheduler).rows.num_rows(), 2);
  EXPECT_EQ(scheduler.take_finished().size(), 2U);
  EXPECT_EQ(take_step(scheduler).rows.num_rows(), 2) << "the third prompt";
}

TEST(BatchScheduler, AnAbortInTheMiddleOfAPromptFreesItsBlocks) {
  auto scheduler = make_scheduler({.max_batched_tokens = 4});
  ASSERT_TRUE(scheduler.submit(make_request(1, 9, 3)).ok());
  take_step(scheduler);
  EXPECT_LT(scheduler.state().num_free_blocks, scheduler.state().num_blocks);
  scheduler.abort(SequenceId(1));
  EXPECT_EQ(scheduler.state().num_free_blocks, scheduler.state().num_blocks);
  EXPECT_FALSE(scheduler.has_work());
  EXPECT_EQ(scheduler.take_finished().size(), 1U);
}

TEST(BatchScheduler, EndsAtTheEndOfSequenceToken) {
  auto scheduler = make_scheduler({});
  ASSERT_TRUE(scheduler.submit(make_request(1, 2, 5)).ok());
  take_step(scheduler);
  take_over_all(scheduler);
  take_step(scheduler, 1);
  const auto ends = scheduler.take_finished();
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].reason, FinishReason::kStop);
  EXPECT_THAT(ends[0].tokens, ElementsAre(7, 1));
}

TEST(BatchScheduler, AGroupComputesItsPromptOnce) {
  auto scheduler = make_scheduler({.kv_blocks = 8, .block_size = 4});
  for (uint64_t id = 1; id <= 4; ++id)
    ASSERT_TRUE(scheduler.submit(make_request(id, 5, 3, "g")).ok());
  const auto plan = take_step(scheduler);
  EXPECT_EQ(plan.rows.num_rows(), 5);
  ASSERT_EQ(plan.samples.size(), 4U);
  for (const auto& sample : plan.samples) EXPECT_EQ(sample.row, 4);
  EXPECT_EQ(scheduler.state().num_held, 4);
  // 1 full block shared by all four, and for each sequence the block that begins with its fifth
  // token.
  EXPECT_EQ(scheduler.state().num_free_blocks, 3);
  EXPECT_EQ(scheduler.state().num_prefill_tokens, 5U);
  const auto events = scheduler.take_prefilled();
  EXPECT_EQ(events[0].num_cached_tokens, 0);
  EXPECT_EQ(events[3].num_cached_tokens, 4);
}

TEST(BatchScheduler, MembersOfAGroupGenerateIntoRowsOfTheirOwn) {
  auto scheduler = make_scheduler({.kv_blocks = 8, .block_size = 4});
  for (uint64_t id = 1; id <= 3; ++id)
    ASSERT_TRUE(scheduler.submit(make_request(id, 6, 3, "g")).ok());
  const auto prompt = take_step(scheduler);
  take_over_all(scheduler);
  const auto plan = take_step(scheduler);
  std::set<int32_t> rows(prompt.rows.cache_rows.begin(), prompt.rows.cache_rows.end());
  rows.insert(plan.rows.cache_rows.begin(), plan.rows.cache_rows.end());
  EXPECT_EQ(rows.size(), 6U + 3);
  ASSERT_EQ(plan.copies.size(), 2U) << "the last has the block in which the prompt was computed";
  for (size_t i = 0; i < plan.rows.spans.size(); ++i) {
    const RowSpan& span = plan.rows.spans[i];
    EXPECT_EQ(span.num_cached, 6);
    const int32_t* blocks = plan.rows.kv_blocks.data() + span.kv_offset;
    EXPECT_EQ(blocks[0] * 4, prompt.rows.cache_rows[0]);
    EXPECT_EQ(blocks[1] * 4 + 2, plan.rows.cache_rows[i]);
  }
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(plan.copies[i].from, prompt.rows.cache_rows[4]);
    EXPECT_EQ(plan.copies[i].to, plan.rows.cache_rows[i] - 2);
    EXPECT_EQ(plan.copies[i].num_rows, 2);
  }
}

TEST(BatchScheduler, ALateMemberComputesOnlyTheTokensAfterTheLastFullBlock) {
  auto scheduler = make_scheduler({.block_size = 4});
  ASSERT_TRUE(scheduler.submit(make_request(1, 6, 3, "g")).ok());
  take_step(scheduler);
  ASSERT_TRUE(scheduler.submit(make_request(2, 6, 3, "g")).ok());
  ASSERT_TRUE(scheduler.submit(make_request(3, 6, 3, "g")).ok());
  const auto plan = take_step(scheduler);
  EXPECT_THAT(plan.rows.positions, ElementsAre(4, 5));
  EXPECT_EQ(plan.rows.spans[0].num_cached, 4);
  EXPECT_EQ(plan.samples.size(), 2U);
  EXPECT_EQ(scheduler.state().num_held, 3);
}

TEST(BatchScheduler, OtherSaltsAndTenantsShareNothing) {
  auto scheduler = make_scheduler({});
  auto other_tenant = make_request(3, 5, 3, "g");
  other_tenant.tenant = TenantSlot(1);
  ASSERT_TRUE(scheduler.submit(make_request(1, 5, 3, "g")).ok());
  ASSERT_TRUE(scheduler.submit(make_request(2, 5, 3, "h")).ok());
  ASSERT_TRUE(scheduler.submit(other_tenant).ok());
  EXPECT_EQ(take_step(scheduler).rows.num_rows(), 15);
}

TEST(BatchScheduler, ThePromptLivesAsLongAsItsLastMember) {
  auto scheduler = make_scheduler({.max_batched_tokens = 3});
  ASSERT_TRUE(scheduler.submit(make_request(1, 5, 3, "g")).ok());
  take_step(scheduler);
  ASSERT_TRUE(scheduler.submit(make_request(2, 5, 3, "g")).ok());
  scheduler.abort(SequenceId(1));
  EXPECT_EQ(scheduler.state().num_free_blocks, scheduler.state().num_blocks);
  take_step(scheduler);
  ASSERT_TRUE(scheduler.submit(make_request(3, 5, 3, "g")).ok());
  EXPECT_EQ(take_step(scheduler).samples.size(), 2U) << "2 and 3, at the end of one prompt";
  scheduler.abort(SequenceId(2));
  EXPECT_LT(scheduler.state().num_free_blocks, scheduler.state().num_blocks);
  take_over_all(scheduler);
  take_step(scheduler);
  scheduler.abort(SequenceId(3));
  EXPECT_EQ(scheduler.state().num_free_blocks, scheduler.state().num_blocks);
  EXPECT_FALSE(scheduler.has_work());
}

TEST(BatchScheduler, RowsOfOneAdapterAreAdjacent) {
  EngineOptions options;
  options.adapter_slots = 3;
  auto scheduler = make_scheduler(options);
  for (const int32_t adapter : {0, 1, 2}) ASSERT_TRUE(scheduler.slots().place(adapter));
  // Prompts of different lengths, so that a position identifies its sequence.
  const std::vector<int32_t> adapters = {2, kNoAdapter, 0, 2, 0, kNoAdapter};
  for (size_t i = 0; i < adapters.size(); ++i)
    ASSERT_TRUE(
        scheduler.submit(make_request(i, static_cast<int32_t>(3 + 2 * i), 9), adapters[i]).ok());
  for (int step = 0; step < 4; ++step) {
    const auto plan = take_step(scheduler);
    take_over_all(scheduler);
    std::vector<int32_t> order;
    int32_t next_row = 0;
    for (const auto& span : plan.rows.spans) {
      order.push_back(span.adapter);
      EXPECT_EQ(span.query_begin, next_row) << "they cover the rows in order";
      next_row += span.num_queries;
    }
    EXPECT_EQ(next_row, plan.rows.num_rows());
    EXPECT_THAT(order, ::testing::ElementsAre(kNoAdapter, kNoAdapter, 0, 0, 2, 2));
    ASSERT_EQ(plan.samples.size(), adapters.size());
    EXPECT_TRUE(std::ranges::is_sorted(plan.samples, {}, &StepPlan::Sample::row));
    for (const auto& sample : plan.samples) {
      const auto row = static_cast<size_t>(sample.row);
      const int32_t position = sample.sequence->size() - 2;  // one token was sampled since
      EXPECT_EQ(plan.rows.positions[row], position);
      EXPECT_EQ(plan.rows.tokens[row], sample.sequence->token(position));
      EXPECT_EQ(plan.rows.cache_rows[row] % 16, position % 16);
    }
  }
  // Decode rows come before prompts, which have many rows.
  for (const int32_t adapter : {0, 2})
    ASSERT_TRUE(
        scheduler.submit(make_request(static_cast<uint64_t>(10 + adapter), 3, 9), adapter).ok());
  std::vector<int32_t> order;
  for (const auto& span : take_step(scheduler).rows.spans) order.push_back(span.adapter);
  EXPECT_THAT(order, ::testing::ElementsAre(kNoAdapter, kNoAdapter, 0, 0, 2, 2, 0, 2));
}

}  // namespace
}  // namespace primerl
