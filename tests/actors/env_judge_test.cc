// Env whose tenant has a reward that a model of the graph gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/env/env.h"
#include "actors/env/rewards/judge.h"
#include "actors/env/scripted_environment.h"
#include "graph/testing/node_runner.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr InstanceId kJudgeInstance(8);

struct EnvJudgeStory : ::testing::Test {
  EnvJudgeStory() {
    auto options = std::make_shared<JudgeOptions>();
    options->rubric = "It is short.";
    tenant.name = "main";
    tenant.environment.name = "reverse_text";
    tenant.rewards = {{.name = "judge", .options = options, .weight = 2, .label = "judge"},
                      {.name = "length", .options = nullptr, .weight = 1, .label = "length"},
                      {.name = "judge", .options = options, .weight = 1, .label = "judge#2"}};
  }
  NodeRunner<Env>& env() {
    if (runner != nullptr) return *runner;
    runner = is_rehearsal ? std::make_unique<NodeRunner<Env>>(
                                EnvOptions(),
                                std::make_unique<Env>(EnvOptions(), make_scripted_environment()))
                          : std::make_unique<NodeRunner<Env>>(EnvOptions());
    runner->set_tenants({tenant});
    runner->set_targets("question",
                        is_connected ? std::vector{kJudgeInstance} : std::vector<InstanceId>());
    return *runner;
  }
  std::vector<JudgeQuestion> act(uint64_t trajectory = 9) {
    Action action;
    action.trajectory = trajectory;
    action.ordinal = 3;
    action.texts = {"short"};
    EXPECT_TRUE(env().give("action", action).ok());
    return env().take<JudgeQuestion>("question");
  }
  std::vector<Observation> score(const JudgeQuestion& question, double value,
                                 const std::string& fault = "") {
    EXPECT_TRUE(env().give("score", JudgeScore{question.question, value, fault}).ok());
    return env().take<Observation>("observation");
  }

  Tenant tenant;
  bool is_connected = true, is_rehearsal = false;
  std::unique_ptr<NodeRunner<Env>> runner;
};

TEST_F(EnvJudgeStory, WithoutTheNodesOfAJudgeItDoesNotStart) {
  is_connected = false;
  const Status started = env().start();
  ASSERT_FALSE(started.ok());
  EXPECT_THAT(started.error().text(), HasSubstr("reward 'judge' asks a judge, but 'question' is "
                                                "not connected"));
}

TEST_F(EnvJudgeStory, AJudgeThatFailsFailsTheRolloutWhenAllScoresAreThere) {
  const auto asked = act();
  ASSERT_THAT(asked, SizeIs(2));
  EXPECT_THAT(score(asked[0], 0, "the judge: no score"), IsEmpty());
  const auto said = score(asked[1], 1);
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0].fault, HasSubstr("the judge: no score"));
  EXPECT_EQ(said[0].reward, 0);
}

TEST_F(EnvJudgeStory, ScoresAreWeightedAndSummed) {
  const auto asked = act();
  ASSERT_THAT(asked, SizeIs(2));
  EXPECT_EQ(asked[0].reward, 0U);
  EXPECT_EQ(asked[1].reward, 2U);
  EXPECT_THAT(text_of(asked[0].messages.at(0)), HasSubstr("Answer to judge:\nshort\n"));
  EXPECT_THAT(text_of(asked[0].messages.at(0)), HasSubstr("Question:\n"));
  EXPECT_THAT(score(asked[1], 0.5), IsEmpty());
  const auto said = score(asked[0], 0.25);
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_TRUE(said[0].is_done);
  EXPECT_THAT(said[0].scores, ElementsAre(0.25, 1, 0.5));
  EXPECT_EQ(said[0].reward, 2 * 0.25 + 1 + 0.5);
}

TEST_F(EnvJudgeStory, AScoreOfAnUnknownQuestionIsCounted) {
  JudgeQuestion unknown = act().at(0);
  unknown.question += 1000;
  EXPECT_THAT(score(unknown, 1), IsEmpty());
  EXPECT_EQ(env().counter("scores_unknown"), 1);
}

TEST_F(EnvJudgeStory, QuestionsOfTwoTrajectoriesHaveDifferentNumbers) {
  const auto first = act(9), second = act(10);
  EXPECT_NE(first.at(0).question, second.at(0).question);
  EXPECT_THAT(score(second[0], 1), IsEmpty());
  const auto said = score(second[1], 1);
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0].trajectory, 10U);
}

TEST_F(EnvJudgeStory, ARehearsalAsksTheJudgeAndNotTheOtherRewards) {
  is_rehearsal = true;
  Action action;
  action.trajectory = 9;
  std::vector<JudgeQuestion> asked;
  std::vector<Observation> said;
  // Every second scripted task has a second turn.
  for (action.ordinal = 0; asked.empty() && action.ordinal < 2; ++action.ordinal) {
    action.texts = {"a"};
    ++action.trajectory;
    ASSERT_TRUE(env().give("action", action).ok());
    asked = env().take<JudgeQuestion>("question");
  }
  ASSERT_THAT(asked, SizeIs(2));
  env().forget_sent("observation");
  EXPECT_THAT(score(asked[0], 0.5), IsEmpty());
  said = score(asked[1], 0.5);
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0].fault, "");
  EXPECT_EQ(said[0].scores.at(0), 0.5);
}

}  // namespace
}  // namespace primerl
