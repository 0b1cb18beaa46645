/// The guarantees of every Engine about options that change logits or report log-probabilities; an
/// engine without logits must refuse the former. Included by engine_conformance.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "tests/conformance/engine_under_test.h"

namespace primerl {

TEST_P(EngineConformance, HasAtLeastMinTokensWhateverWouldEndIt) {
  auto engine = make({}, std::make_shared<SyllableTokenizer>());
  for (const int32_t min_tokens : {0, 1, 7, 24}) {
    for (uint64_t id = 1; id <= 8; ++id) {
      auto one = request(id, 24);
      one.sampling.ignore_eos = false;
      one.sampling.min_tokens = min_tokens;
      one.sampling.stop = {"a", "b"};
      for (int32_t token = 2; token < GetParam().vocab_size && token < 40; token += 2)
        one.sampling.stop_ids.push_back(token);
      const auto end = run_one(*engine, one);
      ASSERT_GE(end.tokens.size(), static_cast<size_t>(std::max(min_tokens, 1)));
      if (min_tokens < 24) {
        EXPECT_EQ(end.reason, FinishReason::kStop) << "a stop text is soon there";
      }
      for (int32_t i = 0; i < min_tokens; ++i)
        EXPECT_EQ(std::ranges::count(one.sampling.stop_ids, end.tokens[static_cast<size_t>(i)]), 0);
      expect_whole(end);
    }
  }
  expect_idle(*engine);
}

TEST_P(EngineConformance, RefusesMinTokensAboveMaxTokens) {
  auto engine = make();
  auto one = request(1, 8);
  one.sampling.min_tokens = 9;
  const Status refused = engine->submit(one);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), ::testing::HasSubstr("0 to max_tokens, here 8"));
}

TEST_P(EngineConformance, AnEngineWithoutLogitsRefusesWhatNeedsThemByName) {
  auto engine = make();
  const std::pair<const char*, std::function<void(SamplingParams&)>> all[] = {
      {"logit_bias",
       [](auto& sampling) {
         sampling.logit_bias = {{3, 1}};
       }},
      {"repetition_penalty", [](auto& sampling) { sampling.repetition_penalty = 1.2; }},
      {"frequency_penalty", [](auto& sampling) { sampling.frequency_penalty = 1; }},
      {"presence_penalty", [](auto& sampling) { sampling.presence_penalty = 1; }}};
  uint64_t id = 0;
  for (const auto& [name, change] : all) {
    auto one = request(++id);
    change(one.sampling);
    const Status submitted = engine->submit(one);
    EXPECT_EQ(submitted.ok(), GetParam().has_logits) << name;
    if (!submitted.ok()) {
      EXPECT_THAT(submitted.error().text(), ::testing::HasSubstr(name));
    }
  }
}

TEST_P(EngineConformance, TopLogprobsAreSortedAndHaveTheSampledOnesOwnAtItsRank) {
  auto engine = make();
  for (const int32_t count : {1, 5, 20})
    for (const int32_t top_k : {0, 3}) {
      auto one = request(3, 20);
      one.sampling.num_top_logprobs = count;
      one.sampling.top_k = top_k;
      const auto end = run_one(*engine, one);
      const auto stride = static_cast<size_t>(count);
      ASSERT_EQ(end.top_logprobs.size(), end.tokens.size() * stride);
      ASSERT_EQ(end.ranks.size(), end.tokens.size());
      for (size_t i = 0; i < end.tokens.size(); ++i) {
        const auto* top = end.top_logprobs.data() + i * stride;
        double mass = 0;
        for (size_t k = 0; k < stride; ++k) mass += std::exp(static_cast<double>(top[k].logprob));
        EXPECT_LT(mass, 1.0001);
        for (size_t k = 1; k < stride; ++k)
          EXPECT_TRUE(top[k].token == -1 || top[k - 1].logprob > top[k].logprob ||
                      (top[k - 1].logprob == top[k].logprob && top[k - 1].token < top[k].token));
        const auto* own = std::find_if(
            top, top + stride, [&](const auto& each) { return each.token == end.tokens[i]; });
        if (own != top + stride) {
          EXPECT_EQ(own->logprob, end.logprobs[i]);
          EXPECT_EQ(end.ranks[i], own - top + 1);
        } else {
          EXPECT_LE(end.logprobs[i], top[stride - 1].logprob);
          EXPECT_GT(end.ranks[i], count);
        }
        if (top_k > 0) {
          EXPECT_LE(end.ranks[i], top_k);
        }
      }
    }
  EXPECT_TRUE(run_one(*engine, request(4, 8)).ranks.empty()) << "nothing asked for ranks";
  expect_idle(*engine);
}

TEST_P(EngineConformance, APromptHasOneLogprobForEachTokenButTheFirst) {
  auto engine = make();
  auto one = request(5, 2);
  one.sampling.prompt_logprobs = true;
  const auto end = run_one(*engine, one);
  ASSERT_EQ(end.prompt_logprobs.size(), one.prompt_tokens.size() - 1);
  for (const float logprob : end.prompt_logprobs) EXPECT_LE(logprob, 0);
  one.id = SequenceId(6);
  expect_same(run_one(*engine, one).prompt_logprobs, end.prompt_logprobs);
}

/// The token itself has the same log-probability in both lists.
TEST_P(EngineConformance, APromptHasItsLikeliestTokensAtEachPositionButTheFirst) {
  constexpr size_t kTop = 5;
  auto engine = make();
  auto one = request(5, 2);
  one.sampling.prompt_logprobs = true;
  one.sampling.num_prompt_top_logprobs = static_cast<int32_t>(kTop);
  const auto end = run_one(*engine, one);
  ASSERT_EQ(end.prompt_top_logprobs.size(), (one.prompt_tokens.size() - 1) * kTop);
  for (size_t i = 0; i + 1 < one.prompt_tokens.size(); ++i) {
    const auto row = std::span(end.prompt_top_logprobs).subspan(i * kTop, kTop);
    double mass = 0;
    for (size_t k = 0; k < kTop; ++k) {
      mass += std::exp(static_cast<double>(row[k].logprob));
      EXPECT_LE(row[k].logprob, row[k == 0 ? 0 : k - 1].logprob) << i;
      if (row[k].token != one.prompt_tokens[i + 1]) continue;
      EXPECT_NEAR(row[k].logprob, end.prompt_logprobs[i], 1e-5) << i;
    }
    EXPECT_LE(mass, 1.001) << i;
    EXPECT_GE(row[0].logprob, end.prompt_logprobs[i] - 1e-5F) << i;
  }
  one.id = SequenceId(6);
  one.sampling.num_prompt_top_logprobs = 0;
  const auto without = run_one(*engine, one);
  EXPECT_TRUE(without.prompt_top_logprobs.empty());
  expect_same(without.prompt_logprobs, end.prompt_logprobs);
}

class EngineLogits : public EngineConformance {
 protected:
  /// A sequence that uses every option and has seven likely ends.
  SequenceRequest busy_request(uint64_t id, int32_t max_tokens = 16) {
    auto one = request(id, max_tokens);
    auto& sampling = one.sampling;
    sampling.ignore_eos = false;
    sampling.min_tokens = 4;
    sampling.stop_ids = {3, 11};
    sampling.logit_bias = {{5, -2.5}, {7, 3}, {11, 6}};
    sampling.repetition_penalty = 1.3;
    sampling.frequency_penalty = 0.4;
    sampling.presence_penalty = -0.3;
    sampling.num_top_logprobs = 5;
    sampling.prompt_logprobs = true;
    return one;
  }
};

TEST_P(EngineLogits, ABiasMakesATokenCertainOrImpossible) {
  auto engine = make();
  for (uint64_t id = 1; id <= 4; ++id) {
    auto one = request(id, 12);
    one.sampling.logit_bias = {{7, 100}};
    for (const int32_t token : run_one(*engine, one).tokens) EXPECT_EQ(token, 7);
    one.sampling.logit_bias = {{7, -100}};
    for (const int32_t token : run_one(*engine, one).tokens) EXPECT_NE(token, 7);
  }
}

TEST_P(EngineLogits, RefusesIdsThatTheModelDoesNotHaveAndSaysWhichItHas) {
  auto engine = make();
  const int32_t size = GetParam().vocab_size;
  for (const int32_t id : {-1, size}) {
    auto one = request(1);
    one.sampling.logit_bias = {{id, 1}};
    const Status bias = engine->submit(one);
    one.sampling.logit_bias = {};
    one.sampling.stop_ids = {id};
    const Status stop = engine->submit(one);
    const auto range = ::testing::HasSubstr(fmt::format("0 to {}", size - 1));
    ASSERT_TRUE(!bias.ok() && !stop.ok()) << id;
    EXPECT_THAT(bias.error().text(), range);
    EXPECT_THAT(stop.error().text(), range);
  }
  expect_idle(*engine);
}

TEST_P(EngineLogits, AHighPenaltyGivesNoTokenTwice) {
  auto engine = make();
  auto one = request(1, 24);
  one.sampling.temperature = 0;
  one.sampling.presence_penalty = 2;
  one.sampling.frequency_penalty = 2;
  one.sampling.repetition_penalty = 1000;
  one.sampling.logit_bias = {{7, 20}};
  auto tokens = run_one(*engine, one).tokens;
  // Logits above 0 nearly vanish and those below 0 become very small, except that of the favoured
  // token.
  std::erase(tokens, 7);
  std::ranges::sort(tokens);
  EXPECT_EQ(std::ranges::adjacent_find(tokens), tokens.end());
}

/// A token's log-probability as a part of the prompt and as a sampled token must be equal.
TEST_P(EngineLogits, ThePromptHasTheLogprobsThatItsTokensWereDrawnWith) {
  auto engine = make();
  auto one = request(2, 18);
  const auto drawn = run_one(*engine, one);
  const size_t num_prompt_tokens = one.prompt_tokens.size();
  one.prompt_tokens.insert(one.prompt_tokens.end(), drawn.tokens.begin(), drawn.tokens.end());
  one.sampling.prompt_logprobs = true;
  one.sampling.temperature = 0.5;
  const auto scored = run_one(*engine, one).prompt_logprobs;
  ASSERT_EQ(scored.size(), num_prompt_tokens - 1 + drawn.tokens.size());
  expect_same(
      std::vector<float>(scored.begin() + static_cast<std::ptrdiff_t>(num_prompt_tokens) - 1,
                         scored.end()),
      drawn.logprobs);
}

TEST_P(EngineLogits, AGroupSharesThePromptAndEachMemberHasItsOwnOptions) {
  auto engine = make();
  std::vector<FinishEvent> alone;
  for (uint64_t id = 1; id <= 4; ++id) {
    auto one = busy_request(9, 14);
    one.seed = id;
    one.sampling.repetition_penalty = 0.8 + 0.2 * static_cast<double>(id);
    alone.push_back(run_one(*engine, one));
  }
  const uint64_t before = engine->state().num_prefill_tokens;
  for (uint64_t id = 1; id <= 4; ++id) {
    auto one = busy_request(9, 14);
    one.id = SequenceId(id);
    one.seed = id;
    one.sampling.repetition_penalty = 0.8 + 0.2 * static_cast<double>(id);
    ASSERT_TRUE(engine->submit(one).ok());
  }
  const auto ends = finish_all(*engine);
  EXPECT_EQ(engine->state().num_prefill_tokens - before, request(9).prompt_tokens.size());
  for (uint64_t id = 1; id <= 4; ++id) {
    EXPECT_EQ(ends.at(id).tokens, alone[id - 1].tokens);
    expect_same(ends.at(id).top_logprobs, alone[id - 1].top_logprobs);
    expect_same(ends.at(id).prompt_logprobs, alone[0].prompt_logprobs);
  }
}

}  // namespace primerl
