#include "kernels/engine/sampling_params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace primerl {
namespace {

using ::testing::HasSubstr;

/// The error; empty if they are valid.
std::string refusal(const SamplingParams& sampling) {
  const Status valid = validate(sampling);
  return valid.ok() ? "" : valid.error().text();
}

std::vector<TokenBias> biases(size_t count) {
  std::vector<TokenBias> all;
  for (size_t i = 0; i < count; ++i) all.push_back({static_cast<int32_t>(i), 1});
  return all;
}

TEST(SamplingParams, TheDefaultsAreValidAndChangeNoLogit) {
  EXPECT_EQ(refusal({}), "");
  EXPECT_FALSE(changes_logits({}));
  EXPECT_FALSE(changes_logits(
      {.temperature = 0.5, .top_k = 3, .num_top_logprobs = 20, .prompt_logprobs = true}));
}

TEST(SamplingParams, TheLikeliestTokensOfAPromptHaveALimitAndNeedItsLogprobs) {
  EXPECT_EQ(refusal({.prompt_logprobs = true, .num_prompt_top_logprobs = kPromptTopLogprobsMax}),
            "");
  EXPECT_THAT(
      refusal({.prompt_logprobs = true, .num_prompt_top_logprobs = kPromptTopLogprobsMax + 1}),
      HasSubstr("num_prompt_top_logprobs is 0 to 256"));
  EXPECT_THAT(refusal({.prompt_logprobs = true, .num_prompt_top_logprobs = -1}),
              HasSubstr("num_prompt_top_logprobs -1"));
  EXPECT_THAT(refusal({.num_prompt_top_logprobs = 1}), HasSubstr("without prompt_logprobs"));
}

TEST(SamplingParams, ATemperatureIsZeroOrNotTooSmall) {
  EXPECT_EQ(refusal({.temperature = 0}), "");
  EXPECT_EQ(refusal({.temperature = kTemperatureMin}), "");
  for (const double bad : {0.0009, 1e-7, 1e-40, -1.0, static_cast<double>(NAN)})
    EXPECT_THAT(refusal({.temperature = bad}), HasSubstr("0 (greedy) or at least 0.001")) << bad;
}

TEST(SamplingParams, EveryOptionThatChangesALogitIsReported) {
  EXPECT_TRUE(changes_logits({.min_tokens = 1}));
  EXPECT_TRUE(changes_logits({.logit_bias = {{3, 0}}}));
  EXPECT_TRUE(changes_logits({.repetition_penalty = 1.1}));
  EXPECT_TRUE(changes_logits({.frequency_penalty = -0.1}));
  EXPECT_TRUE(changes_logits({.presence_penalty = 0.1}));
}

TEST(SamplingParams, MinTokensIsAtMostMaxTokens) {
  EXPECT_EQ(refusal({.max_tokens = 5, .min_tokens = 5}), "");
  EXPECT_THAT(refusal({.max_tokens = 5, .min_tokens = 6}),
              HasSubstr("min_tokens is 0 to max_tokens, here 5"));
  EXPECT_THAT(refusal({.min_tokens = -1}), HasSubstr("min_tokens -1"));
}

TEST(SamplingParams, ALogitBiasIsFiniteAndWithinItsRange) {
  EXPECT_EQ(refusal({.logit_bias = {{0, -100}, {7, 100}}}), "");
  for (const double bad : {100.1, -100.1, static_cast<double>(NAN), static_cast<double>(INFINITY)})
    EXPECT_THAT(refusal({.logit_bias = {{7, bad}}}), HasSubstr("[-100, 100]")) << bad;
}

TEST(SamplingParams, ALogitBiasIsSortedAndBounded) {
  EXPECT_EQ(refusal({.logit_bias = biases(kLogitBiasesMax)}), "");
  EXPECT_THAT(refusal({.logit_bias = biases(kLogitBiasesMax + 1)}), HasSubstr("at most 1024"));
  EXPECT_THAT(refusal({.logit_bias = {{7, 1}, {3, 1}}}), HasSubstr("token 3 after token 7"));
  EXPECT_THAT(refusal({.logit_bias = {{7, 1}, {7, 1}}}), HasSubstr("without duplicates"));
}

TEST(SamplingParams, PenaltiesAreWithinTheirRanges) {
  for (const double good : {0.001, 0.5, 1000.0})
    EXPECT_EQ(refusal({.repetition_penalty = good}), "") << good;
  for (const double bad : {0.0, -1.0, 0.0009, 1001.0, static_cast<double>(NAN)})
    EXPECT_THAT(refusal({.repetition_penalty = bad}), HasSubstr("[0.001, 1000]")) << bad;
  for (const double good : {-2.0, 2.0}) {
    EXPECT_EQ(refusal({.frequency_penalty = good}), "");
    EXPECT_EQ(refusal({.presence_penalty = good}), "");
  }
  for (const double bad : {-2.1, 2.1, static_cast<double>(NAN)}) {
    EXPECT_THAT(refusal({.frequency_penalty = bad}), HasSubstr("frequency_penalty is in [-2, 2]"));
    EXPECT_THAT(refusal({.presence_penalty = bad}), HasSubstr("presence_penalty is in [-2, 2]"));
  }
}

TEST(SamplingParams, AtMostTwentyTopLogprobs) {
  EXPECT_EQ(refusal({.num_top_logprobs = 20}), "");
  EXPECT_THAT(refusal({.num_top_logprobs = 21}), HasSubstr("0 to 20"));
  EXPECT_THAT(refusal({.num_top_logprobs = -1}), HasSubstr("num_top_logprobs -1"));
}

}  // namespace
}  // namespace primerl
