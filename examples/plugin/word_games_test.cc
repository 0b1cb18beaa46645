#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brevity.h"
#include "diversity_filter.h"
#include "graph/testing/node_runner.h"
#include "rotate_word.h"
#include "soft_gate.h"
#include "two_choices.h"

namespace word_games {
namespace {

using ::testing::SizeIs;

primerl::TrajectoryGroup group_of(const std::vector<std::vector<int32_t>>& answers) {
  primerl::TrajectoryGroup group;
  for (const auto& answer : answers) {
    primerl::Trajectory member;
    member.tokens = answer;
    member.sampled.assign(answer.size(), 1);
    group.members.push_back(std::move(member));
  }
  return group;
}

TEST(DiversityFilter, EndsAGroupOfOneOpinion) {
  primerl::NodeRunner<DiversityFilter> filter({.answers_min = 2});
  ASSERT_TRUE(filter.give("group", group_of({{1, 2}, {1, 2}})).ok());
  EXPECT_THAT(filter.sent<primerl::TrajectoryGroup>("kept"), SizeIs(0));
  EXPECT_THAT(filter.sent<primerl::GroupEnded>("ended"), SizeIs(1));
}

TEST(DiversityFilter, KeepsAGroupOfTwo) {
  primerl::NodeRunner<DiversityFilter> filter({.answers_min = 2});
  ASSERT_TRUE(filter.give("group", group_of({{1, 2}, {1, 3}})).ok());
  EXPECT_THAT(filter.sent<primerl::TrajectoryGroup>("kept"), SizeIs(1));
}

TEST(RotateWord, RewardsTheRightAnswerWithOne) {
  const auto environment = rotate_word_contract().make(nullptr).value();
  const auto task = environment->task(0, primerl::RandomStream(7)).value();
  EXPECT_EQ(environment->step(task, {task.answer}).value().reward, 1.0);
  EXPECT_LT(environment->step(task, {task.answer + "x"}).value().reward, 1.0);
}

TEST(Brevity, TakesAShareForEachLetterBeyondTheFreeOnes) {
  const BrevityOptions options{.letters_free = 4, .price = 0.25};
  const auto reward = brevity_contract().make(&options).value();
  EXPECT_EQ(reward->score({}, {"abcd"}, 0.8).value(), 0.8);
  EXPECT_EQ(reward->score({}, {"abcdef"}, 0.8).value(), 0.4);
  EXPECT_EQ(reward->score({}, {"abcdefghijk"}, 0.8).value(), 0.0);
}

TEST(SoftGate, FollowsTheAdvantageOnPolicyAndLetsGoOfWhatMoved) {
  const auto spec = soft_gate_objective();
  const primerl::Objective objective{.clip_low = 1.05, .clip_high = 1};
  const auto gradient = [&](double moved) {
    return spec.own_loss(objective, {.log_pi = -1 + moved, .log_mu = -1, .advantage = 0.5})
        .gradient;
  };
  EXPECT_DOUBLE_EQ(gradient(0), -0.5);
  EXPECT_GT(gradient(2.5), -0.1);
}

TEST(TwoChoices, TakesTheLessLoadedOfTwo) {
  const auto policy = two_choices_contract().make();
  std::vector<primerl::EngineView> engines(2);
  engines[0].num_requests = 5;
  for (uint64_t session = 0; session < 50; ++session) {
    primerl::RouteQuestion question;
    question.session_key = session;
    EXPECT_LT(policy->choose(question, engines), engines.size());
  }
}

}  // namespace
}  // namespace word_games
