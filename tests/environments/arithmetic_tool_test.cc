#include "actors/env/environments/arithmetic_tool.h"

#include <gmock/gmock.h>

namespace primerl {
namespace {

using ::testing::HasSubstr;
using Actions = std::vector<std::string>;

class ArithmeticTool : public ::testing::Test {
 protected:
  EnvironmentStep step(const Actions& actions) { return *environment_->step(task_, actions); }
  double reward(const Actions& actions) {
    const auto last = step(actions);
    EXPECT_TRUE(last.done);
    return last.reward;
  }
  std::unique_ptr<Environment> environment_ = *make_arithmetic_tool({});
  const EnvironmentTask task_{"a:12+34>", "46"};
};

TEST_F(ArithmeticTool, RefusesOptionsThatMakeNoTask) {
  const auto fault = [](const ArithmeticToolOptions& options) {
    const auto made = make_arithmetic_tool(options);
    return made.ok() ? "no fault" : made.error().text();
  };
  EXPECT_THAT(fault({.operators = "/"}), HasSubstr("'operators' is '/'"));
  EXPECT_THAT(fault({.operators = ""}), HasSubstr("'operators'"));
  EXPECT_THAT(fault({.operand_max = -1}), HasSubstr("'operand_max' -1"));
  EXPECT_EQ(fault({.operand_max = kOperandMax}), "no fault");
  EXPECT_THAT(fault({.operand_max = kOperandMax + 1}), HasSubstr("'operand_max'"));
  EXPECT_EQ(fault({.turns_max = 2}), "no fault");
  EXPECT_THAT(fault({.turns_max = 1}), HasSubstr("'turns_max' 1"));
  EXPECT_EQ(fault({.turns_max = kToolTurnsMax}), "no fault");
  EXPECT_THAT(fault({.turns_max = kToolTurnsMax + 1}), HasSubstr("'turns_max'"));
  EXPECT_THAT(fault({.call_reward = 1}), HasSubstr("'call_reward' 1"));
}

TEST_F(ArithmeticTool, AnswersACallWithItsResult) {
  const auto result = step({"c:12+34="});
  EXPECT_FALSE(result.done);
  EXPECT_EQ(result.text, "46>");
  EXPECT_EQ(step({"c:5-7="}).text, "-2>");
  EXPECT_EQ(step({"c:999999999*999999999="}).text, "999999998000000001>");
}

TEST_F(ArithmeticTool, AnswersAQuestionMarkToACallItCannotRead) {
  for (const char* bad : {"c:", "c:=", "c:12+34", "c:12=", "c:12+=", "c:+34=", "c:12/34=",
                          "c:12+34 =", "c:-1+2=", "c:1+-2=", "c:1+2+3=", "c:1000000000+1=",
                          "c:99999999999999999999+1=", "c:1+2==", "c:0x1+2="})
    EXPECT_EQ(step({bad}).text, "?>") << bad;
}

TEST_F(ArithmeticTool, RewardsTheRightAnswerOnlyAfterTheRightCall) {
  EXPECT_EQ(reward({"c:12+34=", "46"}), 1);
  EXPECT_EQ(reward({"c:12+34=", "45"}), 0.2);
  EXPECT_EQ(reward({"c:12+34=", "46 "}), 0.2);
  EXPECT_EQ(reward({"c:34+12=", "46"}), 0);
  EXPECT_EQ(reward({"46"}), 0);
  EXPECT_EQ(reward({""}), 0);
  EXPECT_EQ(reward({"c:1+", "c:12+34=", "46"}), 1);
}

TEST_F(ArithmeticTool, EndsAfterTheLastTurn) {
  EXPECT_FALSE(step({"c:1+1=", "c:12+34="}).done);
  EXPECT_EQ(reward({"c:1+1=", "c:12+34=", "c:12+34="}), 0.2);
  EXPECT_EQ(reward({"c:1+1=", "c:1+1=", "c:1+1="}), 0);
}

TEST_F(ArithmeticTool, EveryTaskCanBeSolvedByCallingItsExpression) {
  auto environment = *make_arithmetic_tool({.operators = "+-*", .operand_max = 999});
  for (uint64_t ordinal = 0; ordinal < 500; ++ordinal) {
    const auto task = *environment->task(ordinal, RandomStream(ordinal));
    const auto again = *environment->task(ordinal, RandomStream(ordinal));
    ASSERT_EQ(task.prompt, again.prompt);
    const std::string call = "c:" + task.prompt.substr(2, task.prompt.size() - 3) + "=";
    const auto observation = *environment->step(task, {call});
    ASSERT_EQ(observation.text, task.answer + ">") << task.prompt;
    ASSERT_EQ(environment->step(task, {call, task.answer})->reward, 1);
    ASSERT_LT(environment->step(task, {call, task.answer + "0"})->reward, 1);
  }
}

TEST_F(ArithmeticTool, RefusesATaskThatIsNotItsOwn) {
  EXPECT_FALSE(environment_->step({"x", ""}, {"46"}).ok());
  EXPECT_EQ(environment_->demonstration({"", ""}).front(), "c:=") << "nothing to call";
  EXPECT_FALSE(environment_->step(task_, {}).ok());
}

}  // namespace
}  // namespace primerl
