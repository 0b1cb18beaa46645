#include "kernels/train/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/engine/kept_sets.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TrainSample sample(std::vector<int32_t> tokens, size_t num_prompt_tokens) {
  TrainSample made;
  made.tokens = std::move(tokens);
  made.loss_mask.assign(made.tokens.size(), 1);
  std::fill_n(made.loss_mask.begin(), std::min(num_prompt_tokens, made.tokens.size()), 0);
  made.logprobs.assign(made.tokens.size(), -1);
  made.advantages.assign(made.tokens.size(), 1);
  return made;
}

/// The tokens that the last query of each span attends to, including its own.
std::vector<std::vector<int32_t>> contexts(const RowBatch& rows) {
  std::vector<std::vector<int32_t>> all;
  for (const auto& span : rows.spans) {
    auto& seen = all.emplace_back();
    for (int32_t j = 0; j < span.num_cached + span.num_queries; ++j)
      seen.push_back(rows.tokens[static_cast<size_t>(
          rows.kv_blocks[static_cast<size_t>(span.kv_offset + j)])]);
  }
  return all;
}

TEST(Weights, AreThoseOfTheTargetsAndAboveZero) {
  TrainSample weighed = sample({1, 2, 3, 4}, 1);
  weighed.weights = {0, 0.5F, kTokenWeightMax, 1e-6F};
  ASSERT_TRUE(check_sample(weighed, LossKind::kCrossEntropy, {8, 8}).ok());
  const auto batches = pack({&weighed, 1}, 8);
  ASSERT_EQ(batches.size(), 1U);
  std::vector<double> found;
  for (const TrainTarget& target : batches[0].targets) found.push_back(target.weight);
  EXPECT_THAT(found, ElementsAre(0.5, 1e4, double{1e-6F}));
  for (const float bad : {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN(),
                          std::nextafter(kTokenWeightMax, 2 * kTokenWeightMax)}) {
    weighed.weights[2] = bad;
    const Status refused = check_sample(weighed, LossKind::kCrossEntropy, {8, 8});
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_THAT(refused.error().message(), HasSubstr("the weight of token 2 is"));
  }
  weighed.weights.pop_back();
  EXPECT_THAT(check_sample(weighed, LossKind::kCrossEntropy, {8, 8}).error().message(),
              HasSubstr("4 tokens, but 3 weights"));
}

TEST(CheckSamples, NamesTheSampleAndTheFault) {
  TrainBatch batch;
  batch.samples = {sample({1, 2, 3}, 1), sample({1, 2, 9}, 1)};
  EXPECT_TRUE(check_samples(batch, {3, 10}).ok());
  const Status outside = check_samples(batch, {3, 9});
  ASSERT_FALSE(outside.ok());
  EXPECT_THAT(outside.error().text(), HasSubstr("sample 1: token 9"));
  EXPECT_FALSE(check_samples(batch, {2, 10}).ok());
  batch.samples[0].temperature = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(check_samples(batch, {3, 10}).ok());
}

TEST(BatchToScore, CountsEveryTokenWithinTheLimits) {
  const auto batch = batch_to_score({1, 2, 9}, {3, 10});
  ASSERT_TRUE(batch.ok()) << batch.error().text();
  ASSERT_EQ(batch->samples.size(), 1U);
  EXPECT_EQ(batch->samples[0].loss_mask, (std::vector<uint8_t>{1, 1, 1}));
  EXPECT_EQ(batch->loss, LossKind::kCrossEntropy);
  EXPECT_THAT(batch_to_score({1, 2, 9}, {3, 9}).error().text(), HasSubstr("token 9"));
  EXPECT_FALSE(batch_to_score({1, 2, 9}, {2, 10}).ok());
}

TEST(CheckSample, TakesLogProbabilitiesUpToTheirLimitsAndNothingBeyond) {
  const auto with = [](float logprob) {
    TrainSample made = sample({1, 2, 3}, 1);
    made.logprobs[2] = logprob;
    return check_sample(made, LossKind::kPolicy, {3, 10}).ok();
  };
  const float never = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(with(kLogprobMin));
  EXPECT_FALSE(with(std::nextafter(kLogprobMin, -never)));
  EXPECT_TRUE(with(kLogprobMax));
  EXPECT_FALSE(with(std::nextafter(kLogprobMax, never)));
  EXPECT_FALSE(with(-never));
  EXPECT_FALSE(with(std::numeric_limits<float>::quiet_NaN()));
}

TEST(CheckSample, AcceptsOnlyMasksOfZeroAndOne) {
  TrainSample made = sample({1, 2, 3}, 1);
  EXPECT_TRUE(check_sample(made, LossKind::kPolicy, {3, 10}).ok());
  made.loss_mask[2] = 2;
  EXPECT_FALSE(check_sample(made, LossKind::kPolicy, {3, 10}).ok());
}

TEST(Pack, DividesLogitsByTheTemperatureOfEachSample) {
  auto warm = sample({1, 2, 3}, 1), cold = sample({1, 2, 4}, 1);
  warm.temperature = 2;
  cold.temperature = 0.5;
  const std::vector<TrainSample> both = {warm, cold};
  const auto batches = pack(both, 100, 100);
  ASSERT_EQ(batches.size(), 1U);
  ASSERT_EQ(batches[0].targets.size(), 4U);
  for (const auto& target : batches[0].targets) {
    if (target.label == 2) continue;  // both have it
    EXPECT_EQ(target.inverse_temperature, target.label == 3 ? 0.5F : 2.0F) << target.label;
  }
}

/// No row predicts the first token, so its set is skipped; each other token has its own.
TEST(Pack, EachTokenHasItsOwnKeptSet) {
  auto all_sampled = sample({3, 4, 5}, 0);
  std::vector<std::byte> kept;
  for (const int32_t token : {3, 4, 5}) append_kept(std::vector<int32_t>{token, 9}, 10, kept);
  all_sampled.kept = Blob(std::move(kept));
  const std::vector<TrainSample> one = {all_sampled};
  const auto batches = pack(one, 100, 100);
  ASSERT_EQ(batches.size(), 1U);
  ASSERT_EQ(batches[0].targets.size(), 2U);
  for (const auto& target : batches[0].targets) {
    std::vector<int32_t> ids;
    target.kept.list(ids);
    EXPECT_THAT(ids, ElementsAre(target.label, 9));
  }
}

/// A document attends only to its own tokens, with any other documents in the pass.
TEST(Pack, AnAppendedMicroBatchSeesTheSameTokens) {
  const std::vector<TrainSample> first = {sample({1, 2, 3, 4}, 2), sample({1, 2, 5, 6}, 2)};
  const std::vector<TrainSample> second = {sample({7, 8, 9, 10}, 2), sample({7, 8, 11, 12}, 2)};
  auto one = pack(first, 100, 100).front();
  const auto other = pack(second, 100, 100).front();
  auto expected = contexts(one.rows);
  for (auto& context : contexts(other.rows)) expected.push_back(std::move(context));
  one.append(other, 1);
  EXPECT_EQ(contexts(one.rows), expected);
}

TEST(Pack, OfNothingIsNothing) {
  EXPECT_TRUE(pack({}, 10).empty());
  EXPECT_TRUE(pack(std::vector{sample({1, 2}, 2)}, 10).empty()) << "no loss token";
  EXPECT_TRUE(pack(std::vector{sample({1}, 0)}, 10).empty()) << "nothing predicts it";
}

TEST(Pack, FeedsAllButTheLastTokenAndAimsAtTheNext) {
  const auto batches = pack(std::vector{sample({5, 6, 7, 8}, 2)}, 10);
  ASSERT_EQ(batches.size(), 1U);
  EXPECT_THAT(batches[0].rows.tokens, ElementsAre(5, 6, 7));
  EXPECT_THAT(batches[0].rows.positions, ElementsAre(0, 1, 2));
  ASSERT_EQ(batches[0].targets.size(), 2U);
  EXPECT_EQ(batches[0].targets[0].row, 1);
  EXPECT_EQ(batches[0].targets[0].label, 7);
  EXPECT_EQ(batches[0].targets[1].row, 2);
  EXPECT_EQ(batches[0].targets[1].label, 8);
}

TEST(Pack, SharesEqualPromptsAndKeepsDocumentsApart) {
  const auto batches = pack(
      std::vector{sample({1, 2, 3, 4}, 2), sample({1, 9, 3, 4}, 2), sample({1, 2, 5, 6}, 2)}, 99);
  ASSERT_EQ(batches.size(), 1U);
  EXPECT_THAT(batches[0].rows.tokens, ElementsAre(1, 2, 3, 5, 1, 9, 3));
  EXPECT_THAT(batches[0].rows.positions, ElementsAre(0, 1, 2, 2, 0, 1, 2));
  EXPECT_THAT(contexts(batches[0].rows),
              ElementsAre(ElementsAre(1, 2), ElementsAre(1, 2, 3), ElementsAre(1, 2, 5),
                          ElementsAre(1, 9), ElementsAre(1, 9, 3)));
  std::vector<std::pair<int32_t, int32_t>> targets;
  for (const auto& target : batches[0].targets) targets.emplace_back(target.row, target.label);
  EXPECT_THAT(targets, ElementsAre(std::pair(1, 3), std::pair(2, 4), std::pair(1, 5),
                                   std::pair(3, 6), std::pair(5, 3), std::pair(6, 4)));
}

TEST(Pack, FillsAMicroBatchToTheLimitAndNoFurther) {
  const std::vector samples = {sample({1, 2, 3, 4, 5}, 1), sample({2, 2, 3, 4, 5}, 1)};
  EXPECT_EQ(pack(samples, 8).size(), 1U);
  EXPECT_EQ(pack(samples, 7).size(), 2U);
}

TEST(Pack, ASampleLongerThanTheLimitGoesAlone) {
  const auto batches = pack(std::vector{sample({1, 2, 3, 4, 5}, 1), sample({7, 8}, 1)}, 2);
  ASSERT_EQ(batches.size(), 2U);
  EXPECT_EQ(batches[0].rows.num_rows(), 4);
  EXPECT_EQ(batches[1].rows.num_rows(), 1);
}

/// A short prompt is computed again; a long one keeps its samples together up to the other limit.
TEST(Pack, ALongPromptIsNotRunAgainForAMicroBatchOfTheWantedSize) {
  const auto group = [](int32_t prompt) {
    std::vector<TrainSample> samples;
    for (int32_t i = 0; i < 8; ++i) {
      std::vector<int32_t> tokens(static_cast<size_t>(prompt), 3);
      for (int32_t t = 0; t < 11; ++t) tokens.push_back(10 + i);
      samples.push_back(sample(tokens, static_cast<size_t>(prompt)));
    }
    return samples;
  };
  // 8 times 10 rows after the prompt.
  EXPECT_EQ(pack(group(2), 100, 42).size(), 2U) << "4 samples and their prompt have 42 rows";
  EXPECT_EQ(pack(group(2), 100, 41).size(), 3U);
  EXPECT_EQ(pack(group(12), 100, 42).size(), 1U) << "92 rows, below eight times 12";
  EXPECT_EQ(pack(group(11), 100, 42).size(), 2U) << "91 rows, above eight times 11";
  EXPECT_EQ(pack(group(12), 91, 42).size(), 2U) << "but never more than the other limit";
}

TEST(Pack, SplitsAGroupThatDoesNotFitAndRepeatsItsPrompt) {
  std::vector<TrainSample> samples;
  for (int32_t i = 0; i < 4; ++i) samples.push_back(sample({1, 2, 3, 10 + i, 20 + i}, 3));
  const auto batches = pack(samples, 5);  // 3 prompt rows and 1 row per sample
  ASSERT_EQ(batches.size(), 2U);
  for (const auto& batch : batches) {
    EXPECT_EQ(batch.rows.num_rows(), 5);
    EXPECT_EQ(batch.targets.size(), 4U);
  }
}

TEST(Pack, ALossTokenInsideTheConversationDoesNotEndTheDocument) {
  auto two_turns = sample({1, 2, 3, 4, 5, 6}, 2);
  two_turns.loss_mask = {0, 0, 1, 0, 0, 1};
  const auto batches = pack(std::vector{two_turns}, 99);
  EXPECT_THAT(batches[0].rows.tokens, ElementsAre(1, 2, 3, 4, 5));
  ASSERT_EQ(batches[0].targets.size(), 2U);
  EXPECT_EQ(batches[0].targets[1].row, 4);
  EXPECT_EQ(batches[0].targets[1].label, 6);
}

/// Groups of four with shared prompts of several lengths.
std::vector<TrainSample> groups(int32_t count) {
  std::vector<TrainSample> samples;
  for (int32_t group = 0; group < count; ++group)
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t prompt = 2 + group % 5;
      std::vector<int32_t> tokens(static_cast<size_t>(prompt), 100 + group);
      for (int32_t t = 0; t < 3 + (group * 7 + i * 11) % 23; ++t)
        tokens.push_back(1000 * group + 100 * i + t);
      samples.push_back(sample(tokens, static_cast<size_t>(prompt)));
    }
  return samples;
}

/// Each token with the tokens that it sees, wherever its row is.
std::vector<std::vector<int32_t>> targets_and_contexts(
    const std::vector<std::vector<MicroBatch>>& ranks) {
  std::vector<std::vector<int32_t>> all;
  for (const auto& batches : ranks)
    for (const MicroBatch& batch : batches)
      for (const TrainTarget& target : batch.targets) {
        const auto span = std::ranges::find_if(batch.rows.spans, [&](const RowSpan& each) {
          return target.row < each.query_begin + each.num_queries;
        });
        auto& seen = all.emplace_back(std::vector{target.sample, target.label});
        const int32_t keys = span->num_cached + target.row - span->query_begin + 1;
        for (int32_t key = 0; key < keys; ++key)
          seen.push_back(batch.rows.tokens[static_cast<size_t>(
              batch.rows.kv_blocks[static_cast<size_t>(span->kv_offset + key)])]);
      }
  std::ranges::sort(all);
  return all;
}

TEST(PackForRanks, EveryTokenIsLearnedOnceAndSeesOnlyItsOwnDocument) {
  const auto samples = groups(20);
  const RowCosts costs = {.per_row = 10, .per_target = 2, .per_pair = 1};
  const auto want = targets_and_contexts({pack(samples, 64)});
  for (const int32_t ranks : {1, 2, 5, 16}) {
    const auto packed = pack_for_ranks(samples, 64, 64, costs, ranks);
    ASSERT_EQ(packed.size(), static_cast<size_t>(ranks));
    EXPECT_EQ(targets_and_contexts(packed), want) << ranks;
    for (const auto& batches : packed) {
      EXPECT_EQ(batches.size(), packed.front().size());
      for (const MicroBatch& batch : batches) EXPECT_LE(batch.rows.num_rows(), 64);
    }
  }
}

TEST(PackForRanks, ForOneRankIsPack) {
  const auto samples = groups(9);
  const auto one = pack_for_ranks(samples, 64, 40, {.per_row = 1}, 1);
  const auto packed = pack(samples, 64, 40);
  ASSERT_EQ(one.size(), 1U);
  ASSERT_EQ(one[0].size(), packed.size());
  for (size_t i = 0; i < packed.size(); ++i) {
    EXPECT_EQ(one[0][i].rows.tokens, packed[i].rows.tokens);
    EXPECT_EQ(one[0][i].rows.kv_blocks, packed[i].rows.kv_blocks);
  }
}

TEST(PackForRanks, ARankWithoutSamplesRunsOneRowWithoutATarget) {
  const auto packed = pack_for_ranks(std::vector{sample({5, 6, 7, 8}, 2)}, 10, 10, {}, 3);
  ASSERT_EQ(packed.size(), 3U);
  int num_dummies = 0;
  for (const auto& batches : packed) {
    ASSERT_EQ(batches.size(), 1U);
    if (!batches[0].targets.empty()) continue;
    ++num_dummies;
    EXPECT_THAT(batches[0].rows.tokens, ElementsAre(0));
    EXPECT_THAT(contexts(batches[0].rows), ElementsAre(ElementsAre(0)));
    EXPECT_EQ(batches[0].rows.draws.size(), 1U);
  }
  EXPECT_EQ(num_dummies, 2);
}

}  // namespace
}  // namespace primerl
