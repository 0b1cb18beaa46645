// Which rows of a prompt are scored, how often, and which sequences share the scores.
#include <algorithm>

#include "tests/kernels/scheduler_steps.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

SequenceRequest scored_request(uint64_t id, int32_t num_prompt_tokens, const std::string& salt) {
  auto made = make_request(id, num_prompt_tokens, 3, salt);
  made.sampling.prompt_logprobs = true;
  return made;
}

/// The log-probability of a token is minus its id, so that a list shows which tokens were scored.
StepPlan take_scored_step(BatchScheduler& scheduler) {
  StepPlan plan;
  if (!scheduler.plan(plan)) return plan;
  for (const auto& score : plan.scores) {
    const auto row = static_cast<size_t>(score.row);
    EXPECT_EQ(plan.rows.tokens[row], score.token - 1) << "tokens rise by one";
    std::vector<TokenLogprob> top;
    for (int32_t i = 0; i < score.prefill->num_prompt_top; ++i)
      top.push_back({score.token + i, static_cast<float>(-score.token)});
    scheduler.accept(score, static_cast<float>(-score.token), top);
  }
  for (const auto& sample : plan.samples) scheduler.accept(*sample.sequence, 7, -1);
  scheduler.finish_step();
  take_over_all(scheduler);
  return plan;
}

std::vector<FinishEvent> run_scored(BatchScheduler& scheduler) {
  while (scheduler.has_work()) take_scored_step(scheduler);
  return scheduler.take_finished();
}

TEST(PromptLogprobs, AreOfEveryTokenButTheFirstWhateverTheChunks) {
  for (const int32_t budget : {1, 2, 3, 5, 100}) {
    auto scheduler = make_scheduler({.block_size = 4, .max_batched_tokens = budget});
    ASSERT_TRUE(scheduler.submit(scored_request(1, 6, "a")).ok());
    const auto ends = run_scored(scheduler);
    ASSERT_EQ(ends.size(), 1U);
    EXPECT_THAT(ends[0].prompt_logprobs, ElementsAre(-11, -12, -13, -14, -15)) << budget;
  }
}

TEST(PromptLogprobs, AreEmptyForAPromptOfOneTokenAndIfNotRequested) {
  auto scheduler = make_scheduler({});
  ASSERT_TRUE(scheduler.submit(scored_request(1, 1, "a")).ok());
  ASSERT_TRUE(scheduler.submit(make_request(2, 6, 3, "b")).ok());
  for (const auto& end : run_scored(scheduler)) EXPECT_THAT(end.prompt_logprobs, IsEmpty());
}

TEST(PromptLogprobs, NeedTheWholePromptWhateverTheCacheHas) {
  auto scheduler = make_scheduler({.block_size = 4});
  ASSERT_TRUE(scheduler.submit(make_request(1, 12, 3, "same")).ok());
  run_to_end(scheduler);
  const auto before = scheduler.state();
  ASSERT_TRUE(scheduler.submit(scored_request(2, 12, "same")).ok());
  const auto ends = run_scored(scheduler);
  EXPECT_EQ(ends[0].num_cached_tokens, 0);
  EXPECT_EQ(ends[0].prompt_logprobs.size(), 11U);
  EXPECT_EQ(scheduler.state().num_prefix_queries, before.num_prefix_queries) << "no lookup";
  ASSERT_TRUE(scheduler.submit(make_request(3, 12, 3, "same")).ok());
  EXPECT_EQ(run_to_end(scheduler)[0].num_cached_tokens, 8) << "it does not change the cache";
}

TEST(PromptLogprobs, AGroupComputesThemOnce) {
  auto scheduler = make_scheduler({.block_size = 4, .max_batched_tokens = 5});
  for (uint64_t id = 1; id <= 4; ++id)
    ASSERT_TRUE(scheduler.submit(scored_request(id, 11, "group")).ok());
  size_t num_scores = 0;
  while (scheduler.has_work()) num_scores += take_scored_step(scheduler).scores.size();
  EXPECT_EQ(num_scores, 10U);
  const auto ends = scheduler.take_finished();
  ASSERT_EQ(ends.size(), 4U);
  for (const auto& end : ends) {
    EXPECT_EQ(end.prompt_logprobs, ends[0].prompt_logprobs);
    EXPECT_EQ(end.prompt_logprobs.size(), 10U);
  }
  expect_all_free(scheduler);
}

TEST(PromptLogprobs, ARequestWithThemDoesNotWaitForAPromptWithoutThem) {
  auto scheduler = make_scheduler({.block_size = 4, .max_batched_tokens = 5});
  ASSERT_TRUE(scheduler.submit(make_request(1, 11, 3, "same")).ok());
  take_scored_step(scheduler);
  ASSERT_TRUE(scheduler.submit(scored_request(2, 11, "same")).ok());
  ASSERT_TRUE(scheduler.submit(make_request(3, 11, 3, "same")).ok());
  auto ends = run_scored(scheduler);
  ASSERT_EQ(ends.size(), 3U);
  std::ranges::sort(ends, {}, [](const auto& end) { return end.id.value; });
  EXPECT_THAT(ends[0].prompt_logprobs, IsEmpty());
  EXPECT_EQ(ends[1].prompt_logprobs.size(), 10U);
  EXPECT_THAT(ends[2].prompt_logprobs, IsEmpty());
  expect_all_free(scheduler);
}

SequenceRequest top_request(uint64_t id, int32_t num_top) {
  auto made = scored_request(id, 6, "same");
  made.sampling.num_prompt_top_logprobs = num_top;
  return made;
}

TEST(PromptLogprobs, HaveTheLikeliestTokensThatWereAskedForWhateverTheChunks) {
  for (const int32_t budget : {1, 3, 100}) {
    auto scheduler = make_scheduler({.block_size = 4, .max_batched_tokens = budget});
    ASSERT_TRUE(scheduler.submit(top_request(1, 2)).ok());
    const auto ends = run_scored(scheduler);
    ASSERT_EQ(ends.size(), 1U);
    ASSERT_EQ(ends[0].prompt_top_logprobs.size(), 10U) << budget;
    for (int32_t i = 0; i < 10; ++i) {
      const TokenLogprob& top = ends[0].prompt_top_logprobs[static_cast<size_t>(i)];
      EXPECT_EQ(top.token, 11 + i / 2 + i % 2);
      EXPECT_EQ(top.logprob, static_cast<float>(-11 - i / 2));
    }
  }
}

TEST(PromptLogprobs, OnlyRequestsOfTheSameNumberOfLikeliestTokensShareAPrompt) {
  auto scheduler = make_scheduler({.block_size = 4});
  ASSERT_TRUE(scheduler.submit(top_request(1, 2)).ok());
  ASSERT_TRUE(scheduler.submit(top_request(2, 3)).ok());
  ASSERT_TRUE(scheduler.submit(top_request(3, 0)).ok());
  ASSERT_TRUE(scheduler.submit(top_request(4, 2)).ok());
  auto ends = run_scored(scheduler);
  ASSERT_EQ(ends.size(), 4U);
  std::ranges::sort(ends, {}, [](const auto& end) { return end.id.value; });
  for (const auto& [index, size] : {std::pair{0U, 10U}, {1U, 15U}, {2U, 0U}, {3U, 10U}}) {
    EXPECT_EQ(ends[index].prompt_top_logprobs.size(), size) << index;
    EXPECT_EQ(ends[index].prompt_logprobs.size(), 5U) << index;
  }
  expect_all_free(scheduler);
}

TEST(PromptLogprobs, MoreLikeliestTokensThanTheModelHasAreRefused) {
  auto scheduler = make_scheduler({});
  EXPECT_TRUE(scheduler.submit(top_request(1, 50)).ok());
  const Status refused = scheduler.submit(top_request(2, 51));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), ::testing::HasSubstr("51 is more than the 50 tokens"));
}

TEST(PromptLogprobs, AreNotComputedAgainAfterAPreemption) {
  // Both prompts fit, their completions do not.
  auto scheduler = make_scheduler({.kv_blocks = 7, .block_size = 4});
  for (uint64_t id = 1; id <= 2; ++id) {
    auto one = scored_request(id, 8, std::to_string(id));
    one.sampling.max_tokens = 12;
    ASSERT_TRUE(scheduler.submit(one).ok());
  }
  size_t num_scores = 0;
  while (scheduler.has_work()) num_scores += take_scored_step(scheduler).scores.size();
  EXPECT_GT(scheduler.state().num_preemptions, 0U);
  EXPECT_EQ(num_scores, 14U);
  for (const auto& end : scheduler.take_finished())
    EXPECT_THAT(end.prompt_logprobs, ElementsAre(-11, -12, -13, -14, -15, -16, -17));
}

}  // namespace
}  // namespace primerl
