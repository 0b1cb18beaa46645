#include "kernels/common/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <set>

#include "graph/base/random.h"
#include "kernels/engine/kept_sets.h"
#include "kernels/train/loss.h"

namespace primerl {
namespace {

constexpr int kDraws = 20000;

// Probabilities 0.4, 0.3, 0.2, 0.1 in a shuffled order: tokens 2, 0, 3, 1.
const std::vector<float> kLogits = {std::log(0.3F), std::log(0.1F), std::log(0.4F), std::log(0.2F)};

/// How often each token was sampled, with its log-probability.
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

/// The rules of the header, implemented by sorting.
std::vector<int32_t> kept_by_sorting(const std::vector<float>& logits,
                                     const SamplingParams& params) {
  const float inverse = 1.0F / static_cast<float>(params.temperature);
  std::vector<float> weights(logits.size());
  cpu_ops().softmax({.vocab_size = static_cast<int64_t>(logits.size()),
                     .inverse_temperature = inverse,
                     .logits = logits.data(),
                     .weights = weights.data()});
  const auto weight = [&](int32_t id) { return weights[static_cast<size_t>(id)]; };
  const auto mass = [&](int32_t id) { return static_cast<uint64_t>(weight(id) * 0x1p40F); };
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < static_cast<int32_t>(logits.size()); ++id)
    if (weight(id) > 0) ids.push_back(id);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return weight(a) > weight(b); });
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < ids.size())
    ids.resize(static_cast<size_t>(params.top_k));
  if (params.top_p < 1) {
    uint64_t total = 0, reached = 0;
    for (const int32_t id : ids) total += mass(id);
    const auto needed = static_cast<uint64_t>(std::ceil(params.top_p * static_cast<double>(total)));
    size_t count = 0;
    while (count < ids.size() && (count == 0 || reached < needed)) reached += mass(ids[count++]);
    ids.resize(count);
  }
  if (params.min_p > 0)
    std::erase_if(ids, [&, least = params.min_p * static_cast<double>(weight(ids[0]))](int32_t id) {
      return static_cast<double>(weight(id)) < least;
    });
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<float> random_logits(size_t size, double deviation, uint64_t seed, bool has_ties) {
  RandomStream random(seed);
  std::vector<float> logits;
  for (size_t i = 0; i < size; ++i) {
    double sum = 0;
    for (int k = 0; k < 4; ++k) sum += random.uniform() - 0.5;
    const double value = sum * deviation;
    logits.push_back(static_cast<float>(has_ties ? std::floor(value * 2) / 2 : value));
  }
  return logits;
}

std::vector<SamplingParams> truncating_params(int32_t vocab_size) {
  std::vector<SamplingParams> all;
  for (const int32_t top_k : {0, 1, 3, 50, vocab_size - 1, vocab_size + 5})
    for (const double top_p : {1.0, 0.9, 0.3, 1e-9, 0.9999999})
      for (const double min_p : {0.0, 0.1, 0.001, 0.9999999999})
        for (const double temperature : {1.0, 0.6})
          if (top_k > 0 || top_p < 1 || min_p > 0)
            all.push_back(
                {.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p});
  return all;
}

TEST(Sampler, KeepsExactlyWhatSortingKeeps) {
  Sampler sampler;
  for (const size_t size : {2U, 63U, 64U, 65U, 700U, 6500U})
    for (const double deviation : {0.0, 0.4, 6.0, 90.0})
      for (const bool has_ties : {false, true}) {
        const auto logits = random_logits(size, deviation, size, has_ties);
        for (const auto& params : truncating_params(static_cast<int32_t>(size))) {
          const auto expected = kept_by_sorting(logits, params);
          std::vector<std::byte> kept, by_sorting;
          const auto drawn = sampler.sample(logits, params, 5, 1, &kept);
          append_kept(expected, static_cast<int32_t>(size), by_sorting);
          ASSERT_EQ(kept, by_sorting)
              << size << " logits, top_k " << params.top_k << ", top_p " << params.top_p
              << ", min_p " << params.min_p << ", deviation " << deviation;
          EXPECT_TRUE(std::binary_search(expected.begin(), expected.end(), drawn.token));
        }
      }
}

TEST(Sampler, TheLogProbabilityIsTheSoftmaxOverTheKeptLogitsToTheBit) {
  Sampler sampler;
  const auto logits = random_logits(900, 6, 3, false);
  for (const auto& params : truncating_params(900)) {
    std::vector<float> gathered;
    const auto ids = kept_by_sorting(logits, params);
    for (const int32_t id : ids) gathered.push_back(logits[static_cast<size_t>(id)]);
    const float inverse = 1.0F / static_cast<float>(params.temperature);
    const auto stats = cpu_ops().softmax({.vocab_size = static_cast<int64_t>(gathered.size()),
                                          .inverse_temperature = inverse,
                                          .logits = gathered.data(),
                                          .weights = nullptr});
    const auto drawn = sampler.sample(logits, params, 8, 2);
    EXPECT_EQ(drawn.logprob,
              logits[static_cast<size_t>(drawn.token)] * inverse - stats.log_normalizer);
    EXPECT_NEAR(drawn.logprob, log_prob(logits, 1 / params.temperature, ids, drawn.token), 1e-5);
  }
}

TEST(Sampler, TiesAtTheEdgeGoToTheLowerIds) {
  Sampler sampler;
  const std::vector<float> logits = {1, 2, 1, 1, 2, 1, 1};
  const auto kept = [&](const SamplingParams& params) {
    std::vector<std::byte> bytes;
    sampler.sample(logits, params, 1, 0, &bytes);
    std::vector<int32_t> ids;
    KeptReader(bytes).next()->list(ids);
    return ids;
  };
  EXPECT_THAT(kept({.top_k = 4}), ::testing::ElementsAre(0, 1, 2, 4));
  EXPECT_THAT(kept({.top_k = 1}), ::testing::ElementsAre(1));
  // The two likeliest have 0.52 of the mass, each other one 0.096.
  EXPECT_THAT(kept({.top_p = 0.6}), ::testing::ElementsAre(0, 1, 4));
  EXPECT_THAT(kept({.top_p = 0.65}), ::testing::ElementsAre(0, 1, 2, 4));
}

TEST(Sampler, AFilterThatLeavesNothingOutChangesNothing) {
  Sampler sampler;
  const auto logits = random_logits(500, 2, 9, false);
  for (int32_t i = 0; i < 200; ++i) {
    const auto plain = sampler.sample(logits, {}, 4, i);
    for (const SamplingParams& params :
         {SamplingParams{.top_k = 500}, SamplingParams{.top_p = 0.9999999999999999},
          SamplingParams{.min_p = 1e-30}}) {
      std::vector<std::byte> kept;
      const auto drawn = sampler.sample(logits, params, 4, i, &kept);
      EXPECT_EQ(drawn.token, plain.token);
      EXPECT_EQ(drawn.logprob, plain.logprob);
      EXPECT_EQ(kept, std::vector<std::byte>(1)) << "one byte: all are kept";
    }
  }
}

TEST(Sampler, ARowWithNanHasLogProbabilityNan) {
  Sampler sampler;
  for (const float bad : {NAN, INFINITY}) {
    auto logits = random_logits(100, 2, 9, false);
    logits[37] = bad;
    for (const SamplingParams& params :
         {SamplingParams{}, SamplingParams{.top_k = 3}, SamplingParams{.top_p = 0.5},
          SamplingParams{.temperature = 0}}) {
      std::vector<std::byte> kept;
      const auto drawn = sampler.sample(logits, params, 4, 0, &kept);
      EXPECT_TRUE(std::isnan(drawn.logprob));
      EXPECT_GE(drawn.token, 0);
      EXPECT_LT(drawn.token, 100);
      EXPECT_EQ(kept.size(), has_kept_sets(params) ? 1U : 0U);
    }
  }
  const std::vector<float> nothing(100, -INFINITY);
  EXPECT_TRUE(std::isnan(sampler.sample(nothing, {.top_k = 3}, 4, 0).logprob));
  auto some = random_logits(100, 2, 9, false);
  some[37] = -INFINITY;
  EXPECT_FALSE(std::isnan(sampler.sample(some, {.top_p = 0.5}, 4, 0).logprob));
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

/// The likeliest tokens, by sorting all log-probabilities of the row, or of the kept tokens.
std::vector<TokenLogprob> top_by_sorting(const std::vector<float>& logits,
                                         const SamplingParams& params) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (has_kept_sets(params)) ids = kept_by_sorting(logits, params);
  const double temperature = params.temperature == 0 ? 1 : params.temperature;
  const float inverse = 1.0F / static_cast<float>(temperature);
  std::vector<float> kept;
  for (const int32_t id : ids) kept.push_back(logits[static_cast<size_t>(id)]);
  const auto stats = cpu_ops().softmax({.vocab_size = static_cast<int64_t>(kept.size()),
                                        .inverse_temperature = inverse,
                                        .logits = kept.data(),
                                        .weights = nullptr});
  std::vector<TokenLogprob> all;
  for (size_t i = 0; i < ids.size(); ++i)
    all.push_back({ids[i], kept[i] * inverse - stats.log_normalizer});
  std::ranges::stable_sort(all, std::greater<>(), &TokenLogprob::logprob);
  all.resize(static_cast<size_t>(params.num_top_logprobs),
             {-1, -std::numeric_limits<float>::infinity()});
  return all;
}

TEST(Sampler, ReportsExactlyTheTopLogprobsOfSorting) {
  Sampler sampler;
  for (const size_t size : {2U, 5U, 64U, 700U})
    for (const bool has_ties : {false, true}) {
      const auto logits = random_logits(size, 6, size, has_ties);
      for (const int32_t count : {1, 3, 20})
        for (SamplingParams params :
             {SamplingParams{}, SamplingParams{.temperature = 0},
              SamplingParams{.temperature = 0.6}, SamplingParams{.top_k = 4},
              SamplingParams{.temperature = 1.7, .top_p = 0.9, .min_p = 0.01}}) {
          params.num_top_logprobs = count;
          std::vector<TokenLogprob> top;
          const SampledToken drawn = sampler.sample(logits, params, 3, 0, nullptr, &top);
          EXPECT_EQ(top, top_by_sorting(logits, params)) << size << " logits, " << count;
          params.num_top_logprobs = static_cast<int32_t>(size);
          const auto all = top_by_sorting(logits, params);
          const auto own = std::ranges::find(all, drawn.token, &TokenLogprob::token);
          EXPECT_EQ(drawn.rank, own - all.begin() + 1) << size << " logits";
        }
    }
}

TEST(Sampler, TopLogprobsAreAppendedAndThoseThatAreMissingAreNone) {
  Sampler sampler;
  const float none = -std::numeric_limits<float>::infinity();
  std::vector<TokenLogprob> top = {{9, -1}};
  const SamplingParams params{.top_k = 1, .num_top_logprobs = 2};
  sampler.sample(kLogits, params, 3, 0, nullptr, &top);
  EXPECT_THAT(
      top, ::testing::ElementsAre(TokenLogprob{9, -1}, TokenLogprob{2, 0}, TokenLogprob{-1, none}));
  sampler.sample(std::vector<float>{NAN, 1}, params, 3, 0, nullptr, &top);
  EXPECT_EQ(top.size(), 5U) << "a row with NaN has none";
  EXPECT_EQ(top[3], (TokenLogprob{-1, none}));
  EXPECT_EQ(sampler.sample(kLogits, {}, 3, 0, nullptr, &top).rank, 0) << "nothing asked for it";
  EXPECT_EQ(top.size(), 5U);
}

TEST(Sampler, ALogitOfMinusInfinityIsNeitherSampledNorReported) {
  Sampler sampler;
  auto logits = random_logits(70, 1, 9, false);
  for (const size_t id : {0U, 3U, 69U}) logits[id] = -INFINITY;
  for (SamplingParams params :
       {SamplingParams{}, SamplingParams{.temperature = 0}, SamplingParams{.top_k = 69}}) {
    params.num_top_logprobs = 20;
    for (int32_t i = 0; i < 500; ++i) {
      std::vector<TokenLogprob> top;
      const auto drawn = sampler.sample(logits, params, 3, i, nullptr, &top);
      ASSERT_TRUE(std::isfinite(drawn.logprob));
      for (const int32_t id : {0, 3, 69}) {
        ASSERT_NE(drawn.token, id);
        ASSERT_EQ(std::ranges::count(top, id, &TokenLogprob::token), 0);
      }
    }
  }
}

TEST(Sampler, ScoresATokenAsItIsDrawnAtTemperatureOne) {
  Sampler sampler;
  const auto logits = random_logits(700, 4, 2, false);
  for (int32_t i = 0; i < 50; ++i) {
    const auto drawn = sampler.sample(logits, {}, 3, i);
    EXPECT_EQ(sampler.score(logits, drawn.token), drawn.logprob);
  }
}

TEST(Sampler, TheLikeliestTokensOfAScoredRowAreInOrderAndTiesGoToTheLowerId) {
  const std::vector<float> logits = {1, 3, -2, 3, 0, 1};
  const Sampler sampler;
  std::vector<TokenLogprob> top(4);
  EXPECT_EQ(sampler.score(logits, 4, top), sampler.score(logits, 4));
  const int32_t wanted[] = {1, 3, 0, 5};
  for (size_t i = 0; i < top.size(); ++i) {
    EXPECT_EQ(top[i].token, wanted[i]);
    EXPECT_EQ(top[i].logprob, sampler.score(logits, wanted[i]));
  }
  top.assign(6, {});
  sampler.score(logits, 4, top);
  EXPECT_EQ(top.back().token, 2) << "all of them";
}

TEST(Sampler, ATokenIsAFunctionOfSeedAndIndex) {
  Sampler one, two;
  std::set<int32_t> seen;
  for (int i = 0; i < 50; ++i) {
    two.sample(kLogits, {}, 99, i);
    EXPECT_EQ(one.sample(kLogits, {}, 5, i).token, two.sample(kLogits, {}, 5, i).token);
    seen.insert(one.sample(kLogits, {}, 5, i).token);
  }
  EXPECT_GT(seen.size(), 1U);
}

TEST(Sampler, ATokenWithoutWeightIsNeverSampled) {
  const std::vector<float> one = {-200, 0, -200, -200, -200, -200, -200, -200, -200};
  Sampler sampler;
  for (int i = 0; i < 200; ++i) EXPECT_EQ(sampler.sample(one, {}, 3, i).token, 1);
}

}  // namespace
}  // namespace primerl
