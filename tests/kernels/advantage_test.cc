#include "kernels/train/advantage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace primerl {
namespace {

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

}  // namespace
}  // namespace primerl
