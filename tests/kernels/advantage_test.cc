#include "kernels/train/advantage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::FloatNear;

TEST(GroupAdvantages, RefusesARewardThatIsNotFiniteAndNamesTheMember) {
  const std::vector<double> rewards = {1, std::numeric_limits<double>::quiet_NaN()};
  const auto advantages = group_advantages(rewards);
  ASSERT_FALSE(advantages.ok());
  EXPECT_THAT(advantages.error().text(), ::testing::HasSubstr("member 1"));
}

TEST(GroupAdvantages, AreTheDistanceFromTheMeanOfTheGroup) {
  const std::vector<double> rewards = {1, 0, 0, 3};
  EXPECT_THAT(group_advantages(rewards).value(), ::testing::ElementsAre(0, -1, -1, 2));
}

TEST(GroupAdvantages, OfAGroupOfOneAreZero) {
  const std::vector<double> rewards = {5};
  EXPECT_THAT(group_advantages(rewards).value(), ::testing::ElementsAre(0));
}

TEST(GroupAdvantages, OfNobodyAreNone) {
  EXPECT_TRUE(group_advantages(std::vector<double>()).value().empty());
}

std::vector<float> advantages_of(const std::vector<double>& rewards, std::string_view name) {
  return group_advantages(rewards, advantage_kind(name).value()).value();
}

TEST(GroupAdvantages, AreTheDistanceFromTheOthers) {
  EXPECT_THAT(advantages_of({1, 0, 0, 3}, "leave_one_out"),
              ElementsAre(0, FloatEq(-4.0F / 3), FloatEq(-4.0F / 3), FloatEq(8.0F / 3)));
}

TEST(GroupAdvantages, AreDividedByTheDeviationOfASample) {
  // Mean 1, squares 0 + 1 + 1 + 4 = 6, deviation sqrt(6 / 3).
  const auto scores = advantages_of({1, 0, 0, 3}, "z_score");
  EXPECT_THAT(scores, ElementsAre(0, FloatNear(-0.70711F, 1e-5F), FloatNear(-0.70711F, 1e-5F),
                                  FloatNear(1.41421F, 1e-5F)));
  EXPECT_EQ(advantages_of({1, 0, 0, 3}, "batch"), scores);
  EXPECT_THAT(advantages_of({2, 2, 2}, "z_score"), ElementsAre(0, 0, 0));
}

TEST(GroupAdvantages, OfMaxRlAreDividedByTheMean) {
  EXPECT_THAT(advantages_of({1, 0, 0, 0}, "max_rl"), ElementsAre(3, -1, -1, -1));
  EXPECT_THAT(advantages_of({0, 0}, "max_rl"), ElementsAre(0, 0));
  const auto refused = group_advantages(std::vector<double>{1, -0.5}, AdvantageKind::kMaxRl);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), ::testing::HasSubstr("member 1 is -0.5"));
}

TEST(GroupAdvantages, OfEveryKindAreZeroForOne) {
  for (const auto& name : advantage_names())
    EXPECT_THAT(advantages_of({5}, name), ElementsAre(0)) << name;
  EXPECT_FALSE(advantage_kind("median"));
}

TEST(LengthCosts, TakeAShareByTheLengthRelativeToTheMean) {
  const std::vector<double> rewards = {1, 1};
  const std::vector<int64_t> lengths = {10, 30};
  EXPECT_THAT(with_length_costs(rewards, lengths, {.weight = 0.5}),
              ElementsAre(1 / 1.25, 1 / 1.75));
  EXPECT_EQ(with_length_costs(rewards, lengths, {}), rewards);
}

TEST(LengthCosts, OfOverlongAnswersRiseFromZeroToOne) {
  const std::vector<double> rewards = {1, 1, 1, 1};
  const std::vector<int64_t> lengths = {900, 950, 1000, 2000};
  EXPECT_THAT(with_length_costs(rewards, lengths, {.overlong_from = 900, .overlong_to = 1000}),
              ElementsAre(1, 0.5, 0, 0));
}

}  // namespace
}  // namespace primerl
