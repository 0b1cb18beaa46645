// Documents over ranks: properties on random and on extreme lengths.
#include "kernels/train/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "graph/base/random.h"
#include "kernels/models/fp8_matrices.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kRowsMax = 8192;
/// A model of 8 B parameters.
constexpr RowCosts kCosts = {.per_row = 6.95e9, .per_target = 0.62e9, .per_pair = 295e3};

std::vector<Document> documents_of(std::vector<int64_t> lengths) {
  std::ranges::sort(lengths, std::greater<>());
  std::vector<Document> documents;
  for (const int64_t rows : lengths) documents.push_back({rows, kCosts.of(rows)});
  return documents;
}

std::vector<Document> lengths_of(const std::string& kind, size_t count, uint64_t seed) {
  RandomStream random(seed);
  const auto normal = [&] {
    return std::sqrt(-2 * std::log(1 - random.uniform())) * std::cos(2 * M_PI * random.uniform());
  };
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < count; ++i) {
    double length = 1500;
    if (kind == "uniform") length = 1 + 8191 * random.uniform();
    if (kind == "lognormal") length = std::exp(7 + normal());
    if (kind == "bimodal")
      length = random.uniform() < 0.8 ? 400 + 100 * normal() : 6500 + 500 * normal();
    if (kind == "one giant") length = i == 0 ? 8192 : 300;
    lengths.push_back(std::clamp<int64_t>(std::llround(length), 1, kRowsMax));
  }
  return documents_of(lengths);
}

double cost_of(const std::vector<Document>& documents, const RankPlan& plan) {
  double cost = 0;
  for (const auto& bin : plan)
    for (const size_t i : bin) cost += documents[i].cost;
  return cost;
}

/// The greatest cost of a rank, as a multiple of what no division can be below: the mean; and of
/// the k costliest documents some rank has its share, rounded up.
double excess(const std::vector<Document>& documents, const std::vector<RankPlan>& plans) {
  double total = 0, least = 0, greatest = 0;
  for (size_t k = 1; k <= documents.size(); ++k) {
    const double cost = documents[k - 1].cost;  // the k-th: they are sorted
    total += cost;
    const size_t share = (k + plans.size() - 1) / plans.size();
    least = std::max(least, static_cast<double>(share) * cost);
  }
  least = std::max(least, total / static_cast<double>(plans.size()));
  for (const RankPlan& plan : plans) greatest = std::max(greatest, cost_of(documents, plan));
  return greatest / least;
}

void expect_valid(const std::vector<Document>& documents, const std::vector<RankPlan>& plans,
                  int64_t rows_max) {
  std::vector<int> times(documents.size());
  for (const RankPlan& plan : plans) {
    EXPECT_EQ(plan.size(), plans.front().size()) << "ranks have equally many micro-batches";
    for (const auto& bin : plan) {
      int64_t rows = 0;
      for (const size_t i : bin) {
        ASSERT_LT(i, documents.size());
        ++times[i];
        rows += documents[i].rows;
      }
      EXPECT_TRUE(rows <= rows_max || bin.size() == 1) << rows << " rows";
      EXPECT_TRUE(std::ranges::is_sorted(bin));
    }
  }
  EXPECT_THAT(times, ::testing::Each(1)) << "each document once";
}

TEST(FirstFit, IsWhatTryingEveryBinFinds) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    RandomStream random(seed);
    std::vector<Document> documents;
    for (uint64_t i = random.below(60); i > 0; --i)
      documents.push_back({static_cast<int64_t>(random.below(130)), 0});  // some above the limit
    std::vector<std::vector<size_t>> want;
    std::vector<int64_t> filled;
    for (size_t i = 0; i < documents.size(); ++i) {
      size_t bin = 0;
      while (bin < want.size() && filled[bin] + documents[i].rows > 100) ++bin;
      if (bin == want.size()) {
        want.emplace_back();
        filled.push_back(0);
      }
      want[bin].push_back(i);
      filled[bin] += documents[i].rows;
    }
    EXPECT_EQ(first_fit(documents, 100), want) << seed;
    EXPECT_EQ(share_over_ranks(documents, 100, 1), std::vector<RankPlan>{want}) << seed;
  }
}

TEST(ShareOverRanks, KeepsItsPromisesForAnyLengths) {
  for (const std::string kind : {"uniform", "lognormal", "bimodal", "all equal", "one giant"})
    for (const int32_t ranks : {2, 3, 8, 48})
      for (const size_t per_rank : {1, 4, 16}) {
        SCOPED_TRACE(kind + fmt::format(", {} ranks of {}", ranks, per_rank));
        const auto documents = lengths_of(kind, per_rank * static_cast<size_t>(ranks), 7);
        const auto plans = share_over_ranks(documents, kRowsMax, ranks);
        ASSERT_EQ(plans.size(), static_cast<size_t>(ranks));
        expect_valid(documents, plans, kRowsMax);
        EXPECT_EQ(plans, share_over_ranks(documents, kRowsMax, ranks)) << "pure";
        const size_t bins = first_fit(documents, kRowsMax).size();
        EXPECT_EQ(plans.front().size(),
                  (bins + static_cast<size_t>(ranks) - 1) / static_cast<size_t>(ranks))
            << "no more micro-batches than needed";
        for (const RankPlan& plan : plans)
          EXPECT_TRUE(std::ranges::is_sorted(plan, std::greater<>(), [&](const auto& bin) {
            return cost_of(documents, {bin});
          })) << "the costliest first";
        // Long and short documents with little free space between them cannot all be balanced.
        const double many = kind == "bimodal" ? 1.12 : 1.001;
        EXPECT_LE(excess(documents, plans), per_rank == 16  ? many
                                            : per_rank == 4 ? 1.08
                                                            : 1 + 1e-9);
      }
}

TEST(ShareOverRanks, WithFewerDocumentsThanRanksFillsUpWithDummies) {
  const auto documents = documents_of({700, 300, 200});
  const auto plans = share_over_ranks(documents, 1000, 5);
  expect_valid(documents, plans, 1000);
  size_t dummies = 0;
  for (const RankPlan& plan : plans) {
    ASSERT_EQ(plan.size(), 1U);
    dummies += plan[0].empty() ? 1 : 0;
  }
  EXPECT_EQ(dummies, 2U);
  for (const RankPlan& plan : share_over_ranks({}, 1000, 3)) EXPECT_THAT(plan, IsEmpty());
}

TEST(ShareOverRanks, ADocumentAboveTheLimitStaysAlone) {
  const auto documents = documents_of({5000, 900, 800, 100, 100, 100});
  const auto plans = share_over_ranks(documents, 1000, 2);
  expect_valid(documents, plans, 1000);
  for (const RankPlan& plan : plans)
    for (const auto& bin : plan)
      EXPECT_TRUE(std::ranges::find(bin, size_t{0}) == bin.end() || bin.size() == 1);
}

TEST(ShareOverRanks, TiesGoToTheLowerIndex) {
  const std::vector<Document> equal(6, {400, 1});
  EXPECT_THAT(share_over_ranks(equal, 1000, 3),
              ElementsAre(ElementsAre(ElementsAre(0, 1)), ElementsAre(ElementsAre(2, 3)),
                          ElementsAre(ElementsAre(4, 5))));
  // Documents without a cost are divided too.
  const std::vector<Document> free(5, {400, 0});
  expect_valid(free, share_over_ranks(free, 1000, 4), 1000);
}

/// First fit leaves micro-batches of 5 documents and fewer, which ranks do not have at equal times.
TEST(ShareOverRanks, RanksDoNotWaitForEachOtherAfterAMicroBatch) {
  const std::vector<Document> equal(128, {1500, 1});
  for (const RankPlan& plan : share_over_ranks(equal, 8192, 8)) {
    ASSERT_EQ(plan.size(), 4U);
    for (const auto& bin : plan) EXPECT_EQ(bin.size(), 4U);
  }
}

/// Without an exchange of documents the greatest is 8 + 2 (limit 10): 8 2 | 7 | 5 4.
TEST(ShareOverRanks, DocumentsChangePlacesBetweenTheMicroBatchesOfRanks) {
  std::vector<Document> documents;
  for (const int64_t rows : {8, 7, 5, 4, 2}) documents.push_back({rows, static_cast<double>(rows)});
  const auto plans = share_over_ranks(documents, 10, 3);
  expect_valid(documents, plans, 10);
  double greatest = 0;
  for (const RankPlan& plan : plans) greatest = std::max(greatest, cost_of(documents, plan));
  EXPECT_EQ(greatest, 9);  // 8 | 7 2 | 5 4
}

TEST(RowCosts, AreTheMatricesThatARowReads) {
  ModelConfig config;
  config.model_type = "qwen3";
  config.vocab_size = 61;
  config.hidden_size = 32;
  config.attention = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 16, .rotary_dim = 16};
  config.mlp = {.width = 40};
  config.layers.assign(3, {{config.attention, config.mlp}});
  double matrices = 0;
  const TensorTable table(config);
  for (const Parameter& parameter : table.parameters())
    if (is_fp8_matrix(parameter)) matrices += static_cast<double>(parameter.count);
  const RowCosts costs = row_costs(config);
  EXPECT_EQ(costs.per_row, matrices);
  EXPECT_EQ(costs.per_target, 61 * 32);
  EXPECT_EQ(costs.per_pair, 3 * 2 * 4 * 16) << "q k and p v of each head";
  EXPECT_EQ(costs.of(10), 10 * (costs.per_row + costs.per_target) + 55 * costs.per_pair);
  // A mixture: the router, two of eight experts and the shared expert.
  MoeSpec moe;
  moe.num_experts = 8;
  moe.experts_per_token = 2;
  moe.width = 24;
  moe.shared_width = 16;
  config.layers[2].stages[1] = moe;
  EXPECT_EQ(row_costs(config).per_row,
            matrices - 3 * 32 * 40 + 32 * 8 + 2 * 3 * 32 * 24 + 3 * 32 * 16);
}

}  // namespace
}  // namespace primerl
