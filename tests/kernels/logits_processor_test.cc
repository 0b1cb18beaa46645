#include "kernels/engine/logits_processor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "graph/base/random.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tokens = std::vector<int32_t>;

constexpr int32_t kVocab = 40;
const Tokens kEos = {1, 2};

std::unique_ptr<LogitsProcessor> make(const SamplingParams& sampling, const Tokens& prompt,
                                      int32_t vocab_size = kVocab) {
  auto made = LogitsProcessor::make(sampling, prompt, kEos, vocab_size);
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().text());
  return std::move(made).value();
}

std::vector<float> processed(const LogitsProcessor& processor, std::vector<float> logits) {
  processor.apply(logits);
  return logits;
}

/// The same rules implemented differently: token by token over the whole vocabulary, from the whole
/// history.
std::vector<float> by_the_rules(const SamplingParams& sampling, const Tokens& prompt,
                                const Tokens& output, std::vector<float> logits) {
  std::map<int32_t, double> biases;
  for (const auto& one : sampling.logit_bias) biases[one.token] = one.bias;
  std::set<int32_t> ends(sampling.stop_ids.begin(), sampling.stop_ids.end());
  if (!sampling.ignore_eos) ends.insert(kEos.begin(), kEos.end());
  for (int32_t token = 0; token < kVocab; ++token) {
    float& z = logits[static_cast<size_t>(token)];
    if (biases.contains(token)) z += static_cast<float>(biases[token]);
    const auto times = std::ranges::count(output, token);
    const bool is_old = times > 0 || std::ranges::count(prompt, token) > 0;
    const auto repetition = static_cast<float>(sampling.repetition_penalty);
    if (is_old && z > 0)
      z /= repetition;
    else if (is_old)
      z *= repetition;
    z -= static_cast<float>(sampling.frequency_penalty) * static_cast<float>(times);
    z -= times > 0 ? static_cast<float>(sampling.presence_penalty) : 0;
    if (output.size() < static_cast<size_t>(sampling.min_tokens) && ends.contains(token))
      z = -INFINITY;
  }
  return logits;
}

TEST(LogitsProcessor, ThereIsNoneWhereNothingChanges) {
  EXPECT_EQ(make({.temperature = 0.3, .top_k = 4, .stop_ids = {5}}, {3, 4}), nullptr);
}

TEST(LogitsProcessor, RefusesIdsOutsideTheVocabularyAndSaysItsRange) {
  for (const int32_t id : {-1, kVocab}) {
    const auto made = LogitsProcessor::make({.logit_bias = {{id, 1}}}, Tokens{3}, kEos, kVocab);
    ASSERT_FALSE(made.ok());
    EXPECT_THAT(made.error().text(), HasSubstr(fmt::format("token {}", id)));
    EXPECT_THAT(made.error().text(), HasSubstr("0 to 39"));
  }
  EXPECT_NE(make({.logit_bias = {{0, 1}, {kVocab - 1, 1}}}, {3}), nullptr);
}

TEST(LogitsProcessor, RefusesMinTokensWhereEveryTokenWouldEndIt) {
  const SamplingParams all{.stop_ids = {0, 3, 3}, .min_tokens = 1};
  const auto made = LogitsProcessor::make(all, Tokens{3}, kEos, 4);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().text(), HasSubstr("no token can be sampled"));
  EXPECT_NE(make(all, {3}, 5), nullptr);
}

TEST(LogitsProcessor, RepetitionDividesWhatIsPositiveAndMultipliesTheRest) {
  const auto processor = make({.repetition_penalty = 2}, {0, 1, 1});
  processor->take(3);
  EXPECT_THAT(processed(*processor, {4, -4, 4, 0, -4}), ElementsAre(2, -8, 4, 0, -4));
}

TEST(LogitsProcessor, FrequencyCountsTheOutputAndPresenceDoesNot) {
  const auto processor = make({.frequency_penalty = 0.5, .presence_penalty = -1}, {0, 0, 0});
  for (const int32_t token : {1, 2, 1, 1}) processor->take(token);
  EXPECT_THAT(processed(*processor, {1, 1, 1, 1}), ElementsAre(1, 0.5F, 1.5F, 1));
}

TEST(LogitsProcessor, TheBiasComesBeforeThePenalties) {
  const auto processor =
      make({.logit_bias = {{0, -3}, {2, 3}}, .repetition_penalty = 2, .presence_penalty = 1}, {0});
  processor->take(0);
  EXPECT_THAT(processed(*processor, {1, 1, 1}), ElementsAre(-5, 1, 4));
}

TEST(LogitsProcessor, EndTokensAreNotSampledBeforeMinTokens) {
  const auto processor = make({.stop_ids = {3, kVocab + 5}, .min_tokens = 2}, {0});
  const std::vector<float> logits(5, 1);
  for (int i = 0; i < 2; ++i) {
    auto row = logits;
    row.resize(kVocab, 1);
    processor->apply(row);
    row.resize(5);
    EXPECT_THAT(row, ElementsAre(1, -INFINITY, -INFINITY, -INFINITY, 1)) << i;
    processor->take(0);
  }
  EXPECT_EQ(processed(*processor, std::vector<float>(kVocab, 1)), std::vector<float>(kVocab, 1));
}

TEST(LogitsProcessor, AnEosThatIsIgnoredMayBeDrawn) {
  const auto processor = make({.ignore_eos = true, .stop_ids = {3}, .min_tokens = 2}, {0});
  EXPECT_THAT(processed(*processor, {1, 1, 1, 1}), ElementsAre(1, 1, 1, -INFINITY));
}

TEST(LogitsProcessor, DoesWhatTheRulesSayOfEveryHistory) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed);
    const auto token = [&] { return static_cast<int32_t>(random.below(kVocab)); };
    SamplingParams sampling;
    if (random.below(2) == 0) sampling.repetition_penalty = 0.5 + random.uniform();
    if (random.below(2) == 0) sampling.frequency_penalty = random.uniform() * 4 - 2;
    if (random.below(2) == 0) sampling.presence_penalty = random.uniform() * 4 - 2;
    sampling.min_tokens = static_cast<int32_t>(random.below(10));
    sampling.ignore_eos = random.below(2) == 0;
    sampling.stop_ids = {token(), token()};
    for (int32_t id = token(); id < kVocab; id += 1 + token())
      sampling.logit_bias.push_back({id, random.uniform() * 200 - 100});
    Tokens prompt, output;
    for (uint64_t i = 0; i <= random.below(30); ++i) prompt.push_back(token());
    const auto processor = make(sampling, prompt);
    for (int i = 0; i < 30 && processor != nullptr; ++i) {
      std::vector<float> logits;
      for (int32_t id = 0; id < kVocab; ++id)
        logits.push_back(static_cast<float>(random.uniform() * 10 - 5));
      ASSERT_EQ(processed(*processor, logits), by_the_rules(sampling, prompt, output, logits)) << i;
      output.push_back(token());
      processor->take(output.back());
    }
  }
}

}  // namespace
}  // namespace primerl
