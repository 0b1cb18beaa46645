// Blocks run out: which sequence is preempted, and that no more are than needed.
#include <algorithm>
#include <set>

#include "tests/kernels/scheduler_steps.h"

namespace primerl {
namespace {

TEST(Preemption, TheLastSequenceWaitsAndResumesWhereItWas) {
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
  EXPECT_EQ(ends[0].id, SequenceId(1)) << "the first sequence ends first";
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

TEST(Preemption, AHeldSequenceLaterInTheOrderLosesItsBlocks) {
  auto scheduler = make_scheduler({.kv_blocks = 3, .block_size = 4});
  ASSERT_TRUE(scheduler.submit(make_request(1, 4, 8)).ok());
  ASSERT_TRUE(scheduler.submit(make_request(2, 1, 2)).ok());
  take_step(scheduler);
  EXPECT_EQ(scheduler.take_prefilled().size(), 2U);
  ASSERT_TRUE(scheduler.take_over(SequenceId(1)).ok());
  for (int i = 0; i < 5; ++i) take_step(scheduler);
  EXPECT_EQ(scheduler.state().num_preemptions, 1U);
  EXPECT_EQ(scheduler.state().num_held, 1) << "without blocks, until take_over()";
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

TEST(Preemption, AStepThatPreemptsAdmitsNoSequence) {
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
  // Each may have 8,192 tokens but ends after about 1,024 at most.
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
    // Every 137 steps a seventh of them gets its stop token: after 959 steps all have ended.
    take_step(scheduler, i % 137 == 136 ? 2 + i / 137 % 7 : 40);
    take_over_all(scheduler);
    most = std::max(most, scheduler.state().num_running);
  }
  EXPECT_GE(most, 5 * 8) << "8 fit with their whole completion reserved";
}

/// A preempted sequence needs twice the free blocks of a new one to come back: without that it is
/// preempted again soon, 33 times in all instead of 25.
TEST(Preemption, APreemptedSequenceComesBackWhereItCanStay) {
  uint64_t num_preemptions = 0;
  for (const int32_t num_blocks : {40, 60}) {
    const uint64_t num_requests = num_blocks == 40 ? 20 : 30;
    auto scheduler = make_scheduler({.kv_blocks = num_blocks, .block_size = 2, .max_running = 64});
    for (uint64_t id = 1; id <= num_requests; ++id) {
      const auto i = static_cast<int32_t>(id);
      ASSERT_TRUE(scheduler.submit(make_request(id, 2 + i % 3, 10 + i * 7 % 11)).ok());
    }
    EXPECT_EQ(run_to_end(scheduler).size(), num_requests);
    num_preemptions += scheduler.state().num_preemptions;
  }
  EXPECT_LE(num_preemptions, 27U);
}

TEST(Preemption, ALongPromptLeavesMostOfTheStepToDecoding) {
  auto scheduler = make_scheduler(
      {.kv_blocks = 64, .block_size = 4, .max_batched_tokens = 64, .max_prefill_tokens = 5});
  ASSERT_TRUE(scheduler.submit(make_request(1, 30, 9)).ok());
  EXPECT_EQ(take_step(scheduler).rows.num_rows(), 30) << "no sequence decodes yet";
  take_over_all(scheduler);
  ASSERT_TRUE(scheduler.submit(make_request(2, 30, 2)).ok());
  for (int i = 0; i < 6; ++i) EXPECT_EQ(take_step(scheduler).rows.num_rows(), 1 + 5);
}

constexpr TenantSlot kFirst(0), kSecond(1);

SequenceRequest request_of(TenantSlot tenant, uint64_t id, int32_t num_prompt, int32_t max_tokens) {
  SequenceRequest made = make_request(id, num_prompt, max_tokens);
  made.tenant = tenant;
  return made;
}

/// The sequences that one step samples. They are read before the step ends, which destroys those
/// that have finished.
std::vector<uint64_t> sampled_by_a_step(BatchScheduler& scheduler) {
  std::vector<uint64_t> ids;
  StepPlan plan;
  if (!scheduler.plan(plan)) return ids;
  for (const auto& sample : plan.samples) {
    ids.push_back(sample.sequence->request.id.value);
    scheduler.accept(*sample.sequence, 7, -1);
  }
  scheduler.finish_step();
  return ids;
}

BatchScheduler shared_by_two(EngineOptions options,
                             const std::vector<double>& shares = {0.5, 0.5}) {
  options.shares = shares;
  options.max_prefill_tokens = 0;
  return make_scheduler(options);
}

TEST(PreemptionAmongTenants, PreemptsTheTenantFurthestBeyondItsPartNotTheYoungestSequence) {
  auto scheduler = shared_by_two({.kv_blocks = 10, .block_size = 4});
  // Three sequences of 2 blocks exceed a part of 5 while the second tenant is absent.
  ASSERT_TRUE(scheduler.submit(request_of(kFirst, 1, 4, 30)).ok());
  ASSERT_TRUE(scheduler.submit(request_of(kFirst, 2, 4, 12)).ok());
  ASSERT_TRUE(scheduler.submit(request_of(kSecond, 3, 4, 12)).ok());
  ASSERT_TRUE(scheduler.submit(request_of(kSecond, 4, 4, 4)).ok());
  take_step(scheduler);
  take_over_all(scheduler);
  std::vector<uint64_t> last;
  while (scheduler.state().num_preemptions == 0) last = sampled_by_a_step(scheduler);
  EXPECT_THAT(last, testing::Not(testing::Contains(2))) << "of the first tenant, the last";
  EXPECT_THAT(last, testing::Contains(1));
  EXPECT_THAT(last, testing::Contains(3)) << "the later sequence, within its part";
  for (const auto& end : run_to_end(scheduler)) EXPECT_EQ(end.reason, FinishReason::kLength);
  expect_all_free(scheduler);
}

/// Both tenants have 4 of 8 blocks, each its part, when the first sequence needs one more.
TEST(PreemptionAmongTenants, AmongEqualTenantsTheOneThatGrowsGivesWay) {
  auto scheduler = shared_by_two({.kv_blocks = 8, .block_size = 4});
  ASSERT_TRUE(scheduler.submit(request_of(kFirst, 1, 4, 8)).ok());
  ASSERT_TRUE(scheduler.submit(request_of(kFirst, 2, 1, 7)).ok());
  ASSERT_TRUE(scheduler.submit(request_of(kSecond, 3, 1, 7)).ok());
  ASSERT_TRUE(scheduler.submit(request_of(kSecond, 4, 1, 7)).ok());
  std::vector<uint64_t> last;
  for (int i = 0; i < 20 && scheduler.state().num_preemptions == 0; ++i) {
    last = sampled_by_a_step(scheduler);
    take_over_all(scheduler);
  }
  EXPECT_THAT(last, testing::UnorderedElementsAre(1, 3, 4));
  EXPECT_EQ(scheduler.state().num_preemptions, 1U);
  EXPECT_EQ(run_to_end(scheduler).size(), 4U);
  expect_all_free(scheduler);
}

/// The victim comes before the growing sequence, and has already got a block for this step.
TEST(PreemptionAmongTenants, APreemptedSequenceHasNoRowInTheStep) {
  auto scheduler = shared_by_two({.kv_blocks = 12, .block_size = 2}, {0.2, 0.8});
  uint64_t id = 0;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(scheduler.submit(request_of(kFirst, ++id, 1, 7)).ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(scheduler.submit(request_of(kSecond, ++id, 1, 7)).ok());
  int num_taken_back = 0;
  std::set<uint64_t> ended;
  for (int step = 0; step < 200 && scheduler.has_work(); ++step) {
    const uint64_t before = scheduler.state().num_preemptions;
    StepPlan plan;
    if (!scheduler.plan(plan)) break;
    std::set<int32_t> written;
    for (const int32_t row : plan.rows.cache_rows) EXPECT_TRUE(written.insert(row).second);
    for (const auto& sample : plan.samples) {
      const Sequence& one = *sample.sequence;
      EXPECT_TRUE(one.state == Sequence::State::kRunning ||
                  one.state == Sequence::State::kPrefilling)
          << "a row of a waiting sequence, " << one.request.id.value;
      scheduler.accept(*sample.sequence, 7, -1);
    }
    scheduler.finish_step();
    take_over_all(scheduler);
    num_taken_back += scheduler.state().num_preemptions > before ? 1 : 0;
    for (const auto& end : scheduler.take_finished()) {
      EXPECT_EQ(end.tokens.size(), 7U);
      ended.insert(end.id.value);
    }
  }
  EXPECT_GT(num_taken_back, 0);
  EXPECT_EQ(ended.size(), 6U);
  expect_all_free(scheduler);
}

TEST(PreemptionAmongTenants, TheFirstInTheOrderIsNeverPreempted) {
  auto scheduler = shared_by_two({.kv_blocks = 8, .block_size = 2}, {0.1, 0.9});
  ASSERT_TRUE(scheduler.submit(request_of(kFirst, 1, 2, 10)).ok());  // 6 blocks of 8, part 0
  for (uint64_t id = 2; id <= 5; ++id)
    ASSERT_TRUE(scheduler.submit(request_of(kSecond, id, 2, 10)).ok());
  uint64_t first_end = 0;
  for (int i = 0; i < 1000 && scheduler.has_work(); ++i) {
    take_step(scheduler);
    take_over_all(scheduler);
    for (const auto& end : scheduler.take_finished())
      if (first_end == 0) first_end = end.id.value;
  }
  EXPECT_EQ(first_end, 1U);
  expect_all_free(scheduler);
}

TEST(PreemptionAmongTenants, ATenantsOnlySequenceMayBeLargerThanItsPart) {
  auto scheduler = shared_by_two({.kv_blocks = 8, .block_size = 2}, {0.1, 0.9});
  ASSERT_TRUE(scheduler.submit(request_of(kSecond, 1, 2, 4)).ok());
  ASSERT_TRUE(scheduler.submit(request_of(kFirst, 2, 2, 6)).ok());
  const auto ends = run_to_end(scheduler);
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_EQ(scheduler.state().num_preemptions, 0U) << "the free blocks are enough";
  expect_all_free(scheduler);
}

/// A sequence is not admitted beyond its part while another's claim is reserved, and does not grow
/// into it.
TEST(PreemptionAmongTenants, AReservedClaimIsFreeWhenItsTenantReturns) {
  auto scheduler = shared_by_two({.kv_blocks = 16, .block_size = 4});
  for (uint64_t id = 1; id <= 8; ++id)
    ASSERT_TRUE(scheduler.submit(request_of(kFirst, id, 4, 20)).ok());
  for (int i = 0; i < 40; ++i) {
    take_step(scheduler);
    take_over_all(scheduler);
    ASSERT_GE(scheduler.blocks().num_free(), 8) << "step " << i;
  }
  for (uint64_t id = 11; id <= 12; ++id)
    ASSERT_TRUE(scheduler.submit(request_of(kSecond, id, 12, 4)).ok());
  EXPECT_THAT(sampled_by_a_step(scheduler), testing::IsSupersetOf({11, 12}));
  run_to_end(scheduler);
  expect_all_free(scheduler);
}

/// Blocks that were not wanted for two windows are lent, and return block by block as their
/// borrower grows.
TEST(PreemptionAmongTenants, LentBlocksReturnOneByOne) {
  auto scheduler = shared_by_two({.kv_blocks = 16, .block_size = 4});
  uint64_t id = 0;
  const auto flood = [&] {
    while (scheduler.state().num_waiting < 4)
      ASSERT_TRUE(scheduler.submit(request_of(kFirst, ++id, 4, 12)).ok());
  };
  for (int i = 0; i < 2 * TenantClaims::kWindow; ++i) {
    flood();
    take_step(scheduler);
    take_over_all(scheduler);
  }
  EXPECT_LE(scheduler.blocks().num_free(), 4) << "lent";
  ASSERT_TRUE(scheduler.submit(request_of(kSecond, 1'000'000, 24, 2)).ok());
  int num_steps = 0;
  for (bool has_begun = false; !has_begun && num_steps < 100; ++num_steps) {
    flood();
    const auto ids = sampled_by_a_step(scheduler);
    take_over_all(scheduler);
    has_begun = std::ranges::count(ids, 1'000'000) > 0;
  }
  EXPECT_LE(num_steps, 8) << "a sequence of the flood takes 12 steps and would have been the last";
}

}  // namespace
}  // namespace primerl
