#include "actors/env/rewards/exact.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/env/rewards/catalog.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

double score(const ExactOptions& options, const std::string& said) {
  return (*make_exact(options))->score({"r:ab>", "ba"}, {"first", said}, 0.7).value();
}

TEST(ExactReward, IsForTheAnswerAlone) {
  EXPECT_EQ(score({}, "ab"), 0);
  EXPECT_EQ(score({}, ""), 0);
  EXPECT_EQ(score({}, "ba"), 1);
}

TEST(ExactReward, OverlooksSpacesAroundTheAnswerUnlessTold) {
  EXPECT_EQ(score({}, " ba\n"), 1);
  EXPECT_EQ(score({}, "b a"), 0);
  EXPECT_EQ(score({.trim = false}, "ba\n"), 0);
}

TEST(ExactReward, CannotJudgeATaskWithoutAnAnswer) {
  const auto reward = *make_exact({});
  EXPECT_THAT(reward->score({"prompt", ""}, {"ba"}, 0).error().text(),
              HasSubstr("no answer to compare with"));
  EXPECT_FALSE(reward->score({"prompt", "ba"}, {}, 0).ok());
}

TEST(RewardCatalog, SaysWhichRewardsThereAre) {
  EXPECT_EQ(*make_reward({}), nullptr);
  EXPECT_THAT(make_reward({"exakt", nullptr}).error().text(),
              ::testing::AllOf(HasSubstr("unknown reward 'exakt'"), HasSubstr("exact")));
  for (const auto& contract : reward_contracts()) {
    EXPECT_FALSE(contract.doc.empty()) << contract.name;
    // No code here, or a schema is needed.
    if (contract.outside || contract.name == "judge" || contract.name == "json_schema") continue;
    EXPECT_TRUE(make_reward({contract.name, contract.options.make()}).ok()) << contract.name;
  }
}

}  // namespace
}  // namespace primerl
