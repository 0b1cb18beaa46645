#include "kernels/torch/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace primerl {
namespace {

constexpr int kDraws = 20000;

// Probabilities 0.4, 0.3, 0.2, 0.1 in a shuffled order: tokens 2, 0, 3, 1.
const std::vector<float> kLogits = {std::log(0.3F), std::log(0.1F), std::log(0.4F), std::log(0.2F)};

/// How often each token came, with the log-probability that came with it.
struct Drawn {
  std::vector<int> counts = std::vector<int>(4, 0);
  std::vector<float> logprobs = std::vector<float>(4, 0.0F);
};

Drawn draw(const SamplingParams& params, const std::vector<float>& logits = kLogits) {
  Sampler sampler;
  Drawn drawn;
  for (int i = 0; i < kDraws; ++i) {
    const auto sampled = sampler.sample(logits, params, 17, i);
    ++drawn.counts[static_cast<size_t>(sampled.token)];
    drawn.logprobs[static_cast<size_t>(sampled.token)] = sampled.logprob;
  }
  return drawn;
}

void expect_distribution(const Drawn& drawn, const std::vector<double>& expected) {
  for (size_t token = 0; token < expected.size(); ++token) {
    const double share = static_cast<double>(drawn.counts[token]) / kDraws;
    EXPECT_NEAR(share, expected[token], 0.015) << token;
    if (expected[token] == 0) {
      EXPECT_EQ(drawn.counts[token], 0) << token;
    } else {
      EXPECT_NEAR(drawn.logprobs[token], std::log(expected[token]), 1e-5) << token;
    }
  }
}

TEST(Sampler, DrawsFromTheDistribution) { expect_distribution(draw({}), {0.3, 0.1, 0.4, 0.2}); }

TEST(Sampler, DividesByTheTemperature) {
  const double a = std::sqrt(0.3), b = std::sqrt(0.1), c = std::sqrt(0.4), d = std::sqrt(0.2);
  const double sum = a + b + c + d;
  expect_distribution(draw({.temperature = 2}), {a / sum, b / sum, c / sum, d / sum});
}

TEST(Sampler, TopKKeepsTheMostLikely) {
  expect_distribution(draw({.top_k = 2}), {3.0 / 7, 0, 4.0 / 7, 0});
  expect_distribution(draw({.top_k = 4}), {0.3, 0.1, 0.4, 0.2});
  expect_distribution(draw({.top_k = 1}), {0, 0, 1, 0});
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  expect_distribution(draw({.top_p = 0.69}), {3.0 / 7, 0, 4.0 / 7, 0});
  expect_distribution(draw({.top_p = 0.71}), {3.0 / 9, 0, 4.0 / 9, 2.0 / 9});
  expect_distribution(draw({.top_p = 0.001}), {0, 0, 1, 0});
}

TEST(Sampler, MinPDropsWhatIsFarLessLikelyThanTheBest) {
  expect_distribution(draw({.min_p = 0.49}), {3.0 / 9, 0, 4.0 / 9, 2.0 / 9});
  expect_distribution(draw({.min_p = 0.51}), {3.0 / 7, 0, 4.0 / 7, 0});
}

TEST(Sampler, FiltersApplyOneAfterTheOther) {
  // top_k leaves 0.4 0.3 0.2 -> 4/9 3/9 2/9; top_p 0.7 then keeps two, of which min_p drops one.
  expect_distribution(draw({.top_k = 3, .top_p = 0.7}), {3.0 / 7, 0, 4.0 / 7, 0});
  expect_distribution(draw({.top_k = 3, .top_p = 0.7, .min_p = 0.8}), {0, 0, 1, 0});
}

TEST(Sampler, GreedyTakesTheBestAndReportsItAtTemperatureOne) {
  Sampler sampler;
  const auto best = sampler.sample(kLogits, {.temperature = 0}, 1, 0);
  EXPECT_EQ(best.token, 2);
  EXPECT_NEAR(best.logprob, std::log(0.4), 1e-6);
  const std::vector<float> equal = {1, 2, 2, 0};
  EXPECT_EQ(sampler.sample(equal, {.temperature = 0}, 1, 0).token, 1) << "the lowest id of equals";
  EXPECT_EQ(sampler.sample(equal, {.top_k = 1}, 1, 0).token, 1);
}

TEST(Sampler, ADrawIsAFunctionOfSeedAndIndex) {
  Sampler one, two;
  std::set<int32_t> seen;
  for (int i = 0; i < 50; ++i) {
    two.sample(kLogits, {}, 99, i);
    EXPECT_EQ(one.sample(kLogits, {}, 5, i).token, two.sample(kLogits, {}, 5, i).token);
    seen.insert(one.sample(kLogits, {}, 5, i).token);
  }
  EXPECT_GT(seen.size(), 1U);
}

TEST(Sampler, ATokenWithoutWeightIsNeverDrawn) {
  const std::vector<float> one = {-200, 0, -200, -200, -200, -200, -200, -200, -200};
  Sampler sampler;
  for (int i = 0; i < 200; ++i) EXPECT_EQ(sampler.sample(one, {}, 3, i).token, 1);
}

}  // namespace
}  // namespace primerl
