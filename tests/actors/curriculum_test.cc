// Which rows a curriculum gives: pools by reward, stages, what a checkpoint keeps.
#include "actors/common/curriculum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "graph/base/random.h"

namespace primerl {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TenantCurriculum with_thresholds(int64_t rows) {
  TenantCurriculum options;
  options.rows = rows;
  options.easy_threshold = 0.9;
  options.hard_threshold = 0.1;
  return options;
}

/// A walk in the order of the rows.
struct Walk {
  explicit Walk(TenantCurriculum of, std::vector<uint8_t> stages = {})
      : options(std::move(of)), stage_of(std::move(stages)) {}
  std::optional<RowWalk::Row> next() {
    const auto row_at = [this](uint64_t at) { return at % static_cast<uint64_t>(options.rows); };
    return walk.next({options, row_at, stage_of, 17}, pools);
  }
  std::vector<uint64_t> rows(int count) {
    std::vector<uint64_t> all;
    while (std::ssize(all) < count)
      if (const auto row = next()) all.push_back(row->row);
    return all;
  }
  bool end_group(uint64_t row, double reward) {
    pools.add(options, row, reward);
    return walk.add(options, pools, row, reward);
  }

  TenantCurriculum options;
  std::vector<uint8_t> stage_of;
  RowPools pools;
  RowWalk walk;
};

TEST(Curriculum, RowsAtAThresholdLeaveAndOnePastItStay) {
  Walk walk(with_thresholds(4));
  EXPECT_THAT(walk.rows(4), ElementsAre(0, 1, 2, 3));
  walk.end_group(0, 0.9);
  walk.end_group(1, 0.1);
  walk.end_group(2, 0.8999);
  walk.end_group(3, 0.1001);
  EXPECT_THAT(walk.rows(4), ElementsAre(2, 3, 2, 3));
  EXPECT_THAT(walk.pools.counts(walk.options), ElementsAre(0, 1, 2, 1));
  EXPECT_THAT(pool_names(walk.options), ElementsAre("unseen", "hard", "normal", "easy"));
  walk.end_group(0, 0.5);  // a group that was in flight
  EXPECT_THAT(walk.rows(3), ElementsAre(0, 2, 3));
}

TEST(Curriculum, ARunThatContinuesWithFewerPoolsCountsTheRowsOfTheOthersAsEasy) {
  TenantCurriculum options = with_thresholds(4);
  options.pools = {{0.3, 1}, {0.6, 2}};
  RowPools pools;
  pools.add(options, 0, 0.4);
  pools.add(options, 1, 1.0);
  EXPECT_THAT(pools.counts(options), ElementsAre(2, 0, 0, 1, 0, 1));
  options.pools.clear();
  EXPECT_THAT(pools.counts(options), ElementsAre(2, 0, 0, 2));
}

TEST(Curriculum, WeightsOfPoolsAreHowOftenTheirRowsAreGiven) {
  TenantCurriculum options;
  options.rows = 3;
  options.pools = {{0.3, 0.5}, {0.6, 4}};
  Walk walk(options);
  walk.end_group(1, 0.3);
  walk.end_group(2, 0.6);
  std::map<uint64_t, double> counts;
  for (const uint64_t row : walk.rows(11000)) ++counts[row];
  // Weights 1 (unseen), 0.5 and 4; four deviations of a count of 1000 are about 120.
  EXPECT_NEAR(counts[0], 2000, 180);
  EXPECT_NEAR(counts[1], 1000, 130);
  EXPECT_NEAR(counts[2], 8000, 180);
  EXPECT_THAT(walk.pools.counts(options), ElementsAre(1, 0, 0, 1, 1, 0));
}

TEST(Curriculum, ADrawAmongTinyWeightsIsBounded) {
  TenantCurriculum options;
  options.rows = 3;
  options.pools = {{0.3, 1e-9}, {0.6, 3e-9}};
  Walk walk(options);
  walk.end_group(0, 0.3);
  walk.end_group(1, 0.3);
  walk.end_group(2, 0.6);
  int num_calls = 1;
  while (!walk.next()) ++num_calls;
  EXPECT_LE(num_calls, 2) << "no row has the weight of unseen rows";
  std::map<uint64_t, double> counts;
  for (int i = 0; i < 5000; ++i) {
    const auto row = walk.next();
    ASSERT_TRUE(row);
    ++counts[row->row];
  }
  EXPECT_NEAR(counts[0], 1000, 130) << "weights of rows still are how often they come";
  EXPECT_NEAR(counts[2], 3000, 180);
  // The heaviest row leaves, and the others have a third of its weight.
  walk.end_group(2, 0.3);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(walk.next());
}

TEST(Curriculum, AHeavierRowThatComesBackIsGivenInPlaceOfTinyOnes) {
  TenantCurriculum options;
  options.rows = 100;
  options.pools = {{0.3, 1e-9}, {0.6, 1}};
  options.unseen_weight = 0;
  Walk walk(options);
  for (uint64_t row = 0; row < 100; ++row) walk.end_group(row, 0.3);
  EXPECT_THAT(walk.rows(5), ::testing::SizeIs(5));
  walk.end_group(42, 0.6);
  auto rows = walk.rows(200);
  // The tiny ones end with the first pass.
  EXPECT_THAT(std::vector<uint64_t>(rows.begin() + 100, rows.end()), Each(42));
}

TEST(Curriculum, WhenAllRowsHaveLeftTheyAreGivenAgainUntilOneHasAWeight) {
  Walk walk(with_thresholds(3));
  for (uint64_t row = 0; row < 3; ++row) walk.end_group(row, 1);
  EXPECT_FALSE(walk.walk.is_exhausted());
  EXPECT_THAT(walk.rows(3), ElementsAre(0, 1, 2));
  EXPECT_TRUE(walk.walk.is_exhausted());
  walk.end_group(1, 1);
  EXPECT_TRUE(walk.walk.is_exhausted());
  walk.end_group(1, 0.5);
  EXPECT_FALSE(walk.walk.is_exhausted());
  EXPECT_THAT(walk.rows(3), Each(1));
}

TEST(Curriculum, AStageAddsRowsWhenTheRewardOfItsGroupsIsReached) {
  TenantCurriculum options;
  options.rows = 6;
  options.stages = {{0, 0.6, 2}, {1, -kNoReward, 1}, {}};
  Walk walk(options, {0, 1, 2, 0, 1, 3});
  EXPECT_THAT(walk.rows(3), ElementsAre(0, 3, 0));
  EXPECT_FALSE(walk.end_group(0, 1));
  EXPECT_FALSE(walk.end_group(3, 0.1999)) << "the mean of two groups is below 0.6";
  EXPECT_FALSE(walk.end_group(0, 1)) << "counted anew";
  EXPECT_TRUE(walk.end_group(3, 0.2)) << "exactly 0.6";
  EXPECT_EQ(walk.walk.stage(), 1U);
  EXPECT_THAT(walk.rows(4), ElementsAre(1, 3, 4, 0));
  EXPECT_TRUE(walk.end_group(0, -5)) << "any reward ends the second stage";
  EXPECT_FALSE(walk.end_group(0, 5)) << "the last one lasts";
  EXPECT_THAT(walk.rows(3), ElementsAre(1, 2, 3));
}

TEST(Curriculum, AStageWithoutRowsIsOver) {
  TenantCurriculum options;
  options.rows = 2;
  options.stages = {{-5, 0.5, 8}, {}};
  Walk walk(options, {1, 1});
  EXPECT_THAT(walk.rows(2), ElementsAre(0, 1));
  EXPECT_EQ(walk.walk.stage(), 1U);
}

TEST(Curriculum, ACheckpointKeepsThePoolsAsLongAsTheirThresholdsAreTheSame) {
  TenantCurriculum options = with_thresholds(1000);
  options.pools = {{0.2, 1}, {0.5, 2}};
  RowPools pools;
  RandomStream random(3);
  for (int i = 0; i < 400; ++i) pools.add(options, random.below(1000), random.uniform());
  const Json saved = parse_json(pools.to_json(options).dump(), "manifest").value();
  EXPECT_EQ(RowPools::from_json(options, saved).value(), pools);
  options.easy_threshold = 0.8;
  EXPECT_EQ(RowPools::from_json(options, saved).value(), RowPools());
  options.easy_threshold = 0.9;
  options.rows = 10;
  const auto shorter = RowPools::from_json(options, saved).value();
  for (uint64_t row = 0; row < 10; ++row) EXPECT_EQ(shorter.pool_of(row), pools.pool_of(row));
  EXPECT_EQ(shorter.pool_of(10), RowPools::kUnseen);
}

TEST(Curriculum, ADamagedCheckpointIsNamed) {
  const TenantCurriculum options = with_thresholds(10);
  const auto fault = [&](const std::string& rows) {
    Json json = RowPools().to_json(options);
    json.set("rows", rows);
    const auto read = RowPools::from_json(options, json);
    return read.ok() ? std::string() : read.error().text();
  };
  EXPECT_EQ(fault("A3BD2"), "");
  EXPECT_EQ(fault("D999999999999"), "") << "no more rows than there are";
  EXPECT_THAT(fault("A0"), HasSubstr("invalid count"));
  EXPECT_THAT(fault("A99999999999999999999"), HasSubstr("invalid count"));
  EXPECT_THAT(fault("E"), HasSubstr("a pool 'E' that does not exist"));
  EXPECT_THAT(fault("3"), HasSubstr("a pool '3'"));
  EXPECT_THAT(RowPools::from_json(options, Json::object()).error().text(), HasSubstr("thresholds"));
}

TEST(Curriculum, ARunThatStartsFromACheckpointGetsAShareOfItsRowsBack) {
  TenantCurriculum options = with_thresholds(20000);
  options.easy_fraction = 0.25;
  RowPools pools;
  for (uint64_t row = 0; row < 20000; ++row) pools.add(options, row, row < 10000 ? 1 : 0);
  RowPools same = pools;
  pools.return_rows(options, 5);
  same.return_rows(options, 5);
  EXPECT_EQ(pools, same);
  const auto counts = pools.counts(options);
  EXPECT_NEAR(static_cast<double>(counts[0]), 2500, 180);
  EXPECT_EQ(counts[1], 10000) << "hard_fraction is 0";
}

/// A row is a byte, whatever its pool is; what a walk passes is bounded too.
TEST(Curriculum, TenMillionRowsAreTenMegabytes) {
  constexpr int64_t kRows = 10'000'000;
  TenantCurriculum options = with_thresholds(kRows);
  Walk walk(options);
  for (uint64_t row = 0; row < kRows; ++row)
    walk.pools.add(options, row, row == 9'999'999 ? 0.5 : 1);
  const std::string text = walk.pools.to_json(options).dump();
  EXPECT_LT(text.size(), 1000U) << "equal rows that follow each other are one entry";
  int num_calls = 0;
  std::optional<RowWalk::Row> found;
  while (!found) {
    found = walk.next();
    ++num_calls;
  }
  EXPECT_EQ(found->row, 9'999'999U);
  EXPECT_EQ(num_calls, kRows / kWalkStepsMax + 1) << "each call passes a bounded number of rows";
}

}  // namespace
}  // namespace primerl
