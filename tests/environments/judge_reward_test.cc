#include "actors/env/rewards/judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

JudgeOptions with_rubric() {
  JudgeOptions options;
  options.rubric = "It is polite.";
  return options;
}

std::string fault_of(const JudgeOptions& options) {
  const Status valid = judge_reward().validate(&options);
  return valid.ok() ? "" : valid.error().text();
}

std::string question_text(const JudgeOptions& options, const EnvironmentTask& task) {
  return text_of(judge_question(options, task, {"first turn", "the {rubric} answer"}).back());
}

std::string rating_fault(std::string_view answer, double best = 10) {
  JudgeOptions options = with_rubric();
  options.best = best;
  const auto rating = judge_rating(options, answer);
  return rating.ok() ? fmt::format("score {}", *rating) : rating.error().message();
}

double rating(std::string_view answer, double best = 10) {
  JudgeOptions options = with_rubric();
  options.best = best;
  const auto rating = judge_rating(options, answer);
  EXPECT_TRUE(rating.ok()) << rating.error().text();
  return rating.ok() ? *rating : -1;
}

TEST(JudgeReward, AnAnswerWithoutANumberInItsLastLineIsNoScore) {
  EXPECT_THAT(rating_fault(""), HasSubstr("is empty"));
  EXPECT_THAT(rating_fault(" \n\t\n"), HasSubstr("is empty"));
  EXPECT_THAT(rating_fault("7\nIt is good."), HasSubstr("has no number: 'It is good.'"));
  EXPECT_THAT(rating_fault("11"), HasSubstr("the judge's number 11 is not in [0, 10]"));
  EXPECT_THAT(rating_fault("-1"), HasSubstr("-1 is not in [0, 10]"));
  EXPECT_THAT(rating_fault("nan"), HasSubstr("has no number"));
}

TEST(JudgeReward, TheScoreIsTheLastNumberOfTheLastLine) {
  EXPECT_EQ(rating("10"), 1);
  EXPECT_EQ(rating("0"), 0);
  EXPECT_EQ(rating("I count 3 faults.\n\nScore: **7**\n"), 0.7);
  EXPECT_EQ(rating("from 2 to 5"), 0.5);
  EXPECT_EQ(rating("7/10"), 0.7);
  EXPECT_EQ(rating("7 / 10"), 0.7);
  EXPECT_EQ(rating("1/2", 4), 0.5) << "2 is not the best number here";
  EXPECT_EQ(rating("/10"), 1) << "the slash has no number before it";
}

TEST(JudgeReward, TheQuestionHasTaskAnswerReferenceAndRubric) {
  const std::string text = question_text(with_rubric(), {.prompt = "Say hi.", .answer = "Hi!"});
  EXPECT_EQ(text,
            "Judge an answer.\n\nQuestion:\nSay hi.\n\nReference answer:\nHi!\n\nAnswer to "
            "judge:\nthe {rubric} answer\n\nRubric:\nIt is polite.\n\nWrite your last line as a "
            "number from 0 (worst) to 10 (best), and nothing else in that line.");
}

TEST(JudgeReward, WhatATaskDoesNotHaveIsLeftOut) {
  const std::string text = question_text(with_rubric(), {.prompt = "", .answer = ""});
  EXPECT_THAT(text, Not(HasSubstr("Question:")));
  EXPECT_THAT(text, Not(HasSubstr("Reference answer:")));
}

TEST(JudgeReward, AConversationIsReadWithItsRoles) {
  EnvironmentTask task;
  task.messages = {chat_message("system", "Be brief."), chat_message("user", "Hi")};
  EXPECT_THAT(question_text(with_rubric(), task), HasSubstr("system: Be brief.\n\nuser: Hi"));
  task.messages.erase(task.messages.begin());
  EXPECT_THAT(question_text(with_rubric(), task), HasSubstr("Question:\nHi\n"));
}

TEST(JudgeReward, APromptOfItsOwnIsFilledInOnce) {
  JudgeOptions options = with_rubric();
  options.prompt = "{rubric}|{answer}|{question}|{reference}|{other}";
  options.system = "You judge.";
  const auto messages =
      judge_question(options, {.prompt = "{answer}", .answer = "r"}, {"{reference}"});
  ASSERT_THAT(messages, SizeIs(2));
  EXPECT_EQ(messages[0].role, "system");
  EXPECT_EQ(text_of(messages[1]), "It is polite.|{reference}|{answer}|r|{other}");
}

TEST(JudgeReward, AYesNoQuestionNamesBothWords) {
  JudgeOptions options = with_rubric();
  options.score = "yes_no";
  options.yes = "good";
  options.no = "bad";
  EXPECT_THAT(question_text(options, {}), HasSubstr("Write only good or bad."));
}

TEST(JudgeReward, OptionsThatCannotWorkAreRefused) {
  EXPECT_EQ(fault_of(with_rubric()), "");
  JudgeOptions options = with_rubric();
  options.prompt = "{question}";
  EXPECT_THAT(fault_of(options), HasSubstr("'prompt' has no {answer}"));
  options = with_rubric();
  options.no = "Yes";
  EXPECT_THAT(fault_of(options), HasSubstr("'yes' and 'no' are both 'Yes'"));
  options = with_rubric();
  options.kwargs = "[1]";
  EXPECT_THAT(fault_of(options), HasSubstr("'kwargs' is an array, not an object"));
  options.kwargs = "{";
  EXPECT_THAT(fault_of(options), HasSubstr("'kwargs'"));
}

TEST(JudgeReward, ARubricHasABound) {
  JudgeOptions options;
  options.rubric = std::string(64 << 10, 'r');
  EXPECT_EQ(fault_of(options), "");
  options.rubric += 'r';
  EXPECT_THAT(fault_of(options), HasSubstr("'rubric' has 65537 bytes, at most 65536"));
}

TEST(JudgeReward, HasNoCodeInTheProcess) {
  const auto made = judge_reward().make(nullptr);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().text(), HasSubstr("only the node 'judge' asks it"));
}

TEST(JudgeReward, TheLongestTimeoutOfATenantCounts) {
  Tenant tenant;
  EXPECT_EQ(judge_time(tenant), Duration());
  EXPECT_EQ(num_judges(tenant), 0);
  auto slow = std::make_shared<JudgeOptions>(with_rubric());
  slow->timeout = Duration::seconds(90);
  tenant.rewards = {{.name = "exact", .options = nullptr},
                    {.name = "judge", .options = nullptr},
                    {.name = "judge", .options = slow}};
  EXPECT_EQ(judge_time(tenant), Duration::seconds(90));
  EXPECT_EQ(num_judges(tenant), 2);
}

}  // namespace
}  // namespace primerl
