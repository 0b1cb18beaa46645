// Which blocks a prompt finds: a table of what happens to weights and salts in a run, and the
// bounds of a hit.
#include "tests/kernels/scheduler_steps.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;

constexpr EngineOptions kBlocksOfFour = {.kv_blocks = 16, .block_size = 4};

/// Computed prompt tokens of `request`, which ends after one token.
int32_t num_computed(BatchScheduler& scheduler, SequenceRequest request) {
  request.sampling.max_tokens = 1;
  EXPECT_TRUE(scheduler.submit(std::move(request)).ok());
  const auto plan = take_step(scheduler);
  take_over_all(scheduler);
  return static_cast<int32_t>(plan.rows.num_rows());
}

/// A turn of a conversation: 6 tokens of prompt and 6 of completion, so 2 full blocks; the last is
/// filled while decoding.
void take_turn(BatchScheduler& scheduler, uint64_t id, const std::string& salt) {
  ASSERT_TRUE(scheduler.submit(make_request(id, 6, 6, salt)).ok());
  ASSERT_EQ(run_to_end(scheduler).size(), 1U);
}

/// Its history and two more tokens.
SequenceRequest next_turn(uint64_t id, const std::string& salt) {
  auto request = make_request(id, 6, 1, salt);
  for (int i = 0; i < 6; ++i) request.prompt_tokens.push_back(7);
  request.prompt_tokens.insert(request.prompt_tokens.end(), {20, 21});
  return request;
}

TEST(PrefixCache, ALaterTurnComputesOnlyWhatIsNew) {
  auto scheduler = make_scheduler(kBlocksOfFour);
  take_turn(scheduler, 1, "a:3");
  // 14 tokens; of the 12 old ones, 11 were computed: 2 full blocks.
  EXPECT_EQ(num_computed(scheduler, next_turn(2, "a:3")), 6);
  const auto ends = scheduler.take_finished();
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].num_cached_tokens, 8);
  EXPECT_EQ(scheduler.state().num_prefix_hits, 8U);
  EXPECT_EQ(scheduler.state().num_prefix_queries, 6U + 14);
}

TEST(PrefixCache, AfterAnUpdateALaterTurnStillHitsItsOwnHistory) {
  auto scheduler = make_scheduler(kBlocksOfFour);
  take_turn(scheduler, 1, "a:3");
  scheduler.set_version({}, PolicyVersion(4));
  EXPECT_EQ(num_computed(scheduler, next_turn(2, "a:3")), 6);
}

TEST(PrefixCache, AfterAnUpdateANewGroupMissesAndFillsTheCacheAgain) {
  auto scheduler = make_scheduler(kBlocksOfFour);
  scheduler.set_version({}, PolicyVersion(3));
  EXPECT_EQ(num_computed(scheduler, make_request(1, 9, 1, "a:3")), 9);
  EXPECT_EQ(num_computed(scheduler, make_request(2, 9, 1, "a:3")), 1);
  scheduler.set_version({}, PolicyVersion(4));
  EXPECT_EQ(num_computed(scheduler, make_request(3, 9, 1, "a:4")), 9);
  EXPECT_EQ(num_computed(scheduler, make_request(4, 9, 1, "a:4")), 1);
}

TEST(PrefixCache, WithoutASaltNoBlockIsFoundUnderNewerWeights) {
  auto scheduler = make_scheduler(kBlocksOfFour);
  const auto unsalted = [](uint64_t id) {
    auto request = make_request(id, 9, 1);
    request.salt.clear();
    return request;
  };
  EXPECT_EQ(num_computed(scheduler, unsalted(1)), 9);
  EXPECT_EQ(num_computed(scheduler, unsalted(2)), 1);
  // A sequence that waits meanwhile was looked up under the old weights.
  ASSERT_TRUE(scheduler.submit(unsalted(3)).ok());
  ASSERT_TRUE(scheduler.has_work());
  scheduler.set_version({}, PolicyVersion(1));
  EXPECT_EQ(take_step(scheduler).rows.num_rows(), 9);
}

TEST(PrefixCache, ALaterTenantOfASlotFindsNoBlockOfAnEarlierOne) {
  auto scheduler = make_scheduler(kBlocksOfFour);
  const auto of_use = [](uint64_t id, uint32_t use) {
    auto request = make_request(id, 9, 1, "a:0");
    request.adapter = AdapterId(use);
    return request;
  };
  for (const uint32_t use : {0U, 1U}) scheduler.set_version(of_use(0, use).key(), PolicyVersion(0));
  EXPECT_EQ(num_computed(scheduler, of_use(1, 0)), 9);
  EXPECT_EQ(num_computed(scheduler, of_use(2, 0)), 1);
  EXPECT_EQ(num_computed(scheduler, of_use(3, 1)), 9) << "equal tokens, slot and salt";
  EXPECT_EQ(num_computed(scheduler, of_use(4, 1)), 1);
}

TEST(PrefixCache, BlocksComputedAgainUnderNewerWeightsAreNotShared) {
  auto scheduler = make_scheduler({.kv_blocks = 6, .block_size = 4});
  scheduler.set_version({}, PolicyVersion(3));
  // The second is preempted when the first grows, and its blocks are reused.
  ASSERT_TRUE(scheduler.submit(make_request(1, 4, 20)).ok());
  ASSERT_TRUE(scheduler.submit(make_request(2, 8, 8, "a:3")).ok());
  take_step(scheduler);
  take_over_all(scheduler);
  while (scheduler.state().num_preemptions == 0) ASSERT_GT(take_step(scheduler).rows.num_rows(), 0);
  scheduler.set_version({}, PolicyVersion(4));
  ASSERT_EQ(run_to_end(scheduler).size(), 2U);
  EXPECT_GT(scheduler.state().num_recomputed_tokens, 0U);
  auto sibling = make_request(3, 9, 1, "a:3");
  const auto state = scheduler.state();
  const int32_t computed = num_computed(scheduler, sibling);
  EXPECT_EQ(computed, 9) << "evicted blocks, computed again under version 4: not those of a:3";
  EXPECT_EQ(scheduler.state().num_prefix_hits, state.num_prefix_hits);
}

TEST(PrefixCache, AnUpdateInTheMiddleOfComputingAgainEndsTheNames) {
  auto scheduler = make_scheduler({.kv_blocks = 6, .block_size = 4, .max_batched_tokens = 4});
  scheduler.set_version({}, PolicyVersion(3));
  auto other = make_request(1, 4, 17);
  other.prompt_tokens = {40, 41, 42, 43};
  ASSERT_TRUE(scheduler.submit(other).ok());
  take_step(scheduler);
  take_over_all(scheduler);
  ASSERT_TRUE(scheduler.submit(make_request(2, 8, 12, "a:3")).ok());
  for (int i = 0; i < 100 && scheduler.state().num_recomputed_tokens < 8; ++i) {
    take_step(scheduler);
    take_over_all(scheduler);
  }
  ASSERT_EQ(scheduler.state().num_recomputed_tokens, 8U) << "of more";
  scheduler.set_version({}, PolicyVersion(4));
  ASSERT_EQ(run_to_end(scheduler).size(), 2U);
  auto longer = make_request(3, 8, 1, "a:3");
  for (int i = 0; i < 12; ++i) longer.prompt_tokens.push_back(7);
  const uint64_t before = scheduler.state().num_prefix_hits;
  num_computed(scheduler, longer);
  EXPECT_EQ(scheduler.state().num_prefix_hits - before, 12U) << "three blocks before the update";
}

TEST(PrefixCache, NoSharedBlockIsWritten) {
  auto scheduler = make_scheduler({.kv_blocks = 30, .block_size = 2, .max_batched_tokens = 5});
  scheduler.set_version({}, PolicyVersion(1));
  for (uint64_t id = 1; id <= 12; ++id)
    ASSERT_TRUE(scheduler.submit(make_request(id, 4, 5, "g")).ok());
  // The last token of the prompt is computed once per five sampled tokens.
  const auto first = take_step(scheduler);
  scheduler.set_version({}, PolicyVersion(2));
  const auto second = take_step(scheduler);
  ASSERT_EQ(second.rows.positions, std::vector<int32_t>{3});
  EXPECT_NE(second.rows.cache_rows[0], first.rows.cache_rows[3]);
  ASSERT_EQ(second.copies.size(), 1U);
  EXPECT_EQ(second.copies[0].from, first.rows.cache_rows[2]);
  EXPECT_EQ(second.copies[0].to + 1, second.rows.cache_rows[0]);
  EXPECT_EQ(run_to_end(scheduler).size(), 12U);
  expect_all_free(scheduler);
}

TEST(PrefixCache, WaitingForAGroupsPromptIsNoHit) {
  auto scheduler = make_scheduler(kBlocksOfFour);
  ASSERT_TRUE(scheduler.submit(make_request(1, 7, 2, "g")).ok());
  ASSERT_TRUE(scheduler.submit(make_request(2, 7, 2, "g")).ok());
  take_step(scheduler);
  EXPECT_EQ(scheduler.state().num_prefix_queries, 7U);
  EXPECT_EQ(scheduler.state().num_prefix_hits, 0U);
}

TEST(PrefixCache, APromptDoesNotJoinAPrefillOfAnOlderVersion) {
  for (const bool is_updated : {false, true}) {
    auto scheduler = make_scheduler(
        {.kv_blocks = 16, .block_size = 4, .max_batched_tokens = 6, .prefix_cache = false});
    scheduler.set_version({}, PolicyVersion(3));
    ASSERT_TRUE(scheduler.submit(make_request(1, 9, 1, "a:3")).ok());
    ASSERT_TRUE(take_step(scheduler).samples.empty()) << "6 of 9 tokens";
    if (is_updated) scheduler.set_version({}, PolicyVersion(4));
    ASSERT_TRUE(scheduler.submit(make_request(2, 9, 1, "a:3")).ok());
    EXPECT_EQ(take_step(scheduler).samples.size(), is_updated ? 1U : 2U);
    take_over_all(scheduler);
    EXPECT_EQ(run_to_end(scheduler).size(), 2U);
  }
}

TEST(PrefixCache, AdaptersAndTenantsHaveBlocksOfTheirOwn) {
  auto scheduler = make_scheduler(kBlocksOfFour);
  EXPECT_EQ(num_computed(scheduler, make_request(1, 9, 1, "s")), 9);
  auto other = make_request(2, 9, 1, "s");
  other.tenant = TenantSlot(1);
  EXPECT_EQ(num_computed(scheduler, other), 9);
}

TEST(PrefixCache, AtLeastTheLastTokenIsComputed) {
  auto scheduler = make_scheduler(kBlocksOfFour);
  EXPECT_EQ(num_computed(scheduler, make_request(1, 8, 1, "s")), 8);
  EXPECT_EQ(num_computed(scheduler, make_request(2, 9, 1, "s")), 1);
  EXPECT_EQ(num_computed(scheduler, make_request(3, 8, 1, "s")), 4) << "a whole block, not none";
  EXPECT_EQ(num_computed(scheduler, make_request(4, 7, 1, "s")), 3);
}

TEST(PrefixCache, TwoPromptsOfOneStepShareTheirBeginning) {
  auto scheduler = make_scheduler(kBlocksOfFour);
  auto longer = make_request(2, 10, 1, "s");
  ASSERT_TRUE(scheduler.submit(make_request(1, 9, 1, "s")).ok());
  ASSERT_TRUE(scheduler.submit(longer).ok());
  const auto plan = take_step(scheduler);
  EXPECT_EQ(plan.rows.num_rows(), 9 + 2);
  EXPECT_THAT(std::vector(plan.rows.positions.end() - 2, plan.rows.positions.end()),
              ElementsAre(8, 9));
}

TEST(PrefixCache, TheEndOfAPromptIsGivenAwayBeforeItsBeginning) {
  auto scheduler = make_scheduler({.kv_blocks = 4, .block_size = 4});
  EXPECT_EQ(num_computed(scheduler, make_request(1, 12, 1, "s")), 12);
  EXPECT_EQ(num_computed(scheduler, make_request(2, 7, 1, "t")), 7);  // 2 blocks, 1 was never used
  EXPECT_EQ(num_computed(scheduler, make_request(3, 12, 1, "s")), 4);
  EXPECT_EQ(scheduler.state().num_evicted_blocks, 1U);
}

TEST(PrefixCache, SwitchedOffNothingIsFound) {
  auto options = kBlocksOfFour;
  options.prefix_cache = false;
  auto scheduler = make_scheduler(options);
  EXPECT_EQ(num_computed(scheduler, make_request(1, 9, 1, "s")), 9);
  EXPECT_EQ(num_computed(scheduler, make_request(2, 9, 1, "s")), 9);
  EXPECT_EQ(scheduler.state().num_prefix_hits, 0U);
}

TEST(PrefixCache, RefusesASaltThatIsNotOne) {
  auto scheduler = make_scheduler(kBlocksOfFour);
  const Status refused = scheduler.submit(make_request(1, 3, 1, "two words"));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), ::testing::HasSubstr("salt"));
  EXPECT_FALSE(scheduler.has_work());
}

}  // namespace
}  // namespace primerl
