// The node that asks a frozen model for scores.
#include "actors/judge/judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "graph/testing/node_runner.h"
#include "tests/actors/fakes.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr InstanceId kRouterOfJudge(7);
constexpr InstanceId kAsker(3);

struct JudgeStory : ::testing::Test {
  JudgeStory() {
    tenant = testing::a_tenant();
    tenant.inflight_max = 2;
    auto source = std::make_shared<ChatSource>();
    source->file = "model/chat_template.jinja";
    source->templates.push_back(
        {"default",
         "{% for m in messages %}{{ m.role }}:{{ m.content }}<eos>{% endfor %}"
         "{% if add_generation_prompt %}assistant:{% endif %}"});
    tokenizer.set_chat_source(std::move(source));
    options.rubric = "r";
    options.yes = "y";
    options.no = "n";
  }
  NodeRunner<Judge>& judge() {
    if (runner != nullptr) return *runner;
    tenant.rewards = {{.name = "exact", .options = nullptr},
                      {.name = "judge",
                       .options = std::make_shared<JudgeOptions>(options),
                       .contract = nullptr,
                       .weight = 1,
                       .label = "judge"}};
    runner = std::make_unique<NodeRunner<Judge>>(node_options);
    runner->set_tenants({tenant});
    runner->use("tokenizer", tokenizer);
    runner->set_targets("generate", {kRouterOfJudge});
    runner->set_targets("score", {kAsker});
    return *runner;
  }
  void ask(uint64_t question, const std::string& text = "ab", uint32_t reward = 1) {
    const Status given =
        judge().give("question", JudgeQuestion{question, reward, {chat_message("user", text)}},
                     {TenantSlot(0), kAsker, kAsker});
    last_given = given.ok() ? "" : given.error().message();
  }
  std::vector<GenerateRequest> requests() { return judge().take<GenerateRequest>("generate"); }
  std::vector<JudgeScore> scores() { return judge().take<JudgeScore>("score"); }
  void complete(const GenerateRequest& request, const std::string& text,
                FinishReason end = FinishReason::kStop, float logprob = -0.25F) {
    Completion completion;
    completion.request = request.request;
    completion.end = end;
    completion.detail = "as the test says";
    for (const char c : text) completion.tokens.push_back(static_cast<unsigned char>(c));
    completion.logprobs.assign(completion.tokens.size(), logprob);
    ASSERT_TRUE(judge().give("completion", completion).ok());
  }
  /// The score of one question that gets this answer.
  JudgeScore scored(const std::string& text, FinishReason end = FinishReason::kStop,
                    float logprob = -0.25F) {
    ask(5);
    const auto made = requests();
    EXPECT_THAT(made, SizeIs(1));
    if (!made.empty()) complete(made[0], text, end, logprob);
    const auto said = scores();
    EXPECT_THAT(said, SizeIs(1));
    return said.empty() ? JudgeScore() : said[0];
  }

  Tenant tenant;
  JudgeOptions options;
  JudgeNodeOptions node_options;
  testing::ByteTokenizer tokenizer;
  std::string last_given;
  std::unique_ptr<NodeRunner<Judge>> runner;
};

TEST_F(JudgeStory, AnAnswerWithoutAScoreFailsTheRolloutAndIsCounted) {
  const JudgeScore score = scored("good\n");
  EXPECT_EQ(score.fault, "the judge: the last line of the judge's answer has no number: 'good'");
  EXPECT_EQ(score.score, 0);
  EXPECT_EQ(judge().counter("judge_answers_unparsed"), 1);
  EXPECT_EQ(judge().counter("judge_faults"), 1);
}

TEST_F(JudgeStory, AnAnswerThatWasCutHasNoScore) {
  EXPECT_THAT(scored("8", FinishReason::kLength).fault, HasSubstr("was cut at max_tokens 512"));
}

TEST_F(JudgeStory, AnAnswerWithoutAScoreIsZeroIfTheOptionSaysSo) {
  options.unparsed = "zero";
  const JudgeScore score = scored("good\n");
  EXPECT_EQ(score.fault, "");
  EXPECT_EQ(score.score, 0);
  EXPECT_EQ(judge().counter("judge_answers_unparsed"), 1);
}

TEST_F(JudgeStory, ARequestThatIsNotAnsweredIsAFaultAlsoWithThatOption) {
  options.unparsed = "zero";
  EXPECT_THAT(scored("", FinishReason::kRefused).fault, HasSubstr("refused: as the test says"));
  EXPECT_EQ(judge().counter("judge_answers_unparsed"), 0);
}

TEST_F(JudgeStory, TheQuestionIsAConversationInTheJudgesTemplate) {
  ask(5, "a<eos>b");
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(1));
  const std::string prompt(made[0].prompt_tokens.begin(), made[0].prompt_tokens.end());
  EXPECT_EQ(prompt, "user:a<eos>b\nassistant:") << "data cannot end a turn";
  EXPECT_EQ(made[0].version, PolicyVersion()) << "a frozen engine has no version";
  EXPECT_EQ(made[0].sampling.temperature, 0);
  EXPECT_EQ(made[0].sampling.max_tokens, 512);
  EXPECT_GE(made[0].request, kJudgeRequestsFrom);
  complete(made[0], "it is good\n8");
  const auto said = scores();
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0].question, 5U);
  EXPECT_EQ(said[0].score, 0.8);
  EXPECT_EQ(said[0].fault, "");
}

TEST_F(JudgeStory, AModelWithoutATemplateReadsThePlainText) {
  auto source = std::make_shared<ChatSource>();
  source->file = "model";
  tokenizer.set_chat_source(std::move(source));
  ask(5, "ab");
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(1));
  EXPECT_EQ(std::string(made[0].prompt_tokens.begin(), made[0].prompt_tokens.end()), "ab");
}

TEST_F(JudgeStory, YesAndNoAreProbabilities) {
  options.score = "yes_no";
  ask(5);
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(1));
  EXPECT_EQ(made[0].sampling.max_tokens, 1);
  EXPECT_EQ(made[0].sampling.temperature, 1);
  EXPECT_THAT(made[0].sampling.logit_bias,
              ElementsAre(TokenBias{'n', kLogitBiasMax}, TokenBias{'y', kLogitBiasMax}));
  EXPECT_TRUE(validate(made[0].sampling).ok());
  complete(made[0], "y", FinishReason::kLength, std::log(0.75F));
  EXPECT_NEAR(scores().at(0).score, 0.75, 1e-6);
  EXPECT_NEAR(scored("n", FinishReason::kLength, std::log(0.75F)).score, 0.25, 1e-6);
  EXPECT_THAT(scored("x", FinishReason::kLength).fault, HasSubstr("neither 'yes' nor 'no'"));
}

TEST_F(JudgeStory, AWordOfSeveralTokensIsRefusedAtTheStart) {
  options.score = "yes_no";
  options.yes = "yes";
  const Status started = judge().start();
  ASSERT_FALSE(started.ok());
  EXPECT_THAT(started.error().text(), HasSubstr("'yes' is 'yes', which is 3 tokens of the judge"));
}

TEST_F(JudgeStory, AQuestionOfAnotherRewardIsRefused) {
  ask(5, "ab", 0);
  EXPECT_THAT(last_given, HasSubstr("reward 0 of tenant 'main' is no judge"));
  const auto said = scores();
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0].fault, HasSubstr("is no judge"));
}

TEST_F(JudgeStory, AQuestionThatHasNoTokensIsAFault) {
  ask(5, "a!");
  EXPECT_THAT(requests(), IsEmpty());
  const auto said = scores();
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0].fault, HasSubstr("character '!' has no token"));
}

TEST_F(JudgeStory, MoreQuestionsThanRolloutsInFlightWait) {
  for (uint64_t question = 1; question <= 3; ++question) ask(question);
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(2)) << "inflight_max is 2";
  complete(made[0], "1");
  EXPECT_THAT(requests(), SizeIs(1));
  ASSERT_TRUE(judge().advance(Duration::milliseconds(1)).ok());
  EXPECT_THAT(requests(), IsEmpty());
}

TEST_F(JudgeStory, ALostEngineIsAskedAgainUpToABound) {
  node_options.attempts_max = 2;
  ask(5);
  for (uint32_t attempt = 0; attempt < 3; ++attempt) {
    const auto made = requests();
    ASSERT_THAT(made, SizeIs(1));
    EXPECT_EQ(made[0].attempt, attempt);
    complete(made[0], "", FinishReason::kEngineLost);
  }
  EXPECT_THAT(requests(), IsEmpty());
  EXPECT_THAT(scores().at(0).fault,
              HasSubstr("its engine was lost or failed 3 times: as the test says"));
}

TEST_F(JudgeStory, TheDeadlineEndsAQuestionAndItsRequestKeepsItsSlot) {
  options.timeout = Duration::seconds(3);
  tenant.inflight_max = 1;
  ask(5);
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(1));
  ASSERT_TRUE(judge().advance(Duration::milliseconds(2999)).ok());
  EXPECT_THAT(scores(), IsEmpty());
  ASSERT_TRUE(judge().advance(Duration::milliseconds(1)).ok());
  EXPECT_THAT(scores().at(0).fault, HasSubstr("no score within 3s"));
  EXPECT_THAT(judge().take<Cancel>("cancel").at(0).requests, ElementsAre(made[0].request));
  ask(6);
  EXPECT_THAT(requests(), IsEmpty()) << "the cancelled request is not answered yet";
  complete(made[0], "", FinishReason::kCancelled);
  const auto next = requests();
  ASSERT_THAT(next, SizeIs(1));
  EXPECT_THAT(next[0].answered, ElementsAre(made[0].request));
}

TEST_F(JudgeStory, AQuestionThatWaitsHasTheSameDeadline) {
  options.timeout = Duration::seconds(3);
  tenant.inflight_max = 1;
  ask(5);
  ask(6);
  ASSERT_TRUE(judge().advance(Duration::seconds(3)).ok());
  EXPECT_THAT(scores(), SizeIs(2));
  EXPECT_THAT(judge().take<Cancel>("cancel"), SizeIs(1));
}

TEST_F(JudgeStory, ALostRouterIsAskedAgain) {
  ask(5);
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(1));
  ASSERT_TRUE(judge().peer({PeerEvent::Kind::kDown, kRouterOfJudge, 1}).ok());
  ask(6);
  ASSERT_TRUE(judge().advance(Duration::milliseconds(1)).ok());
  EXPECT_THAT(requests(), IsEmpty()) << "a request to a router that is down is lost";
  ASSERT_TRUE(judge().peer({PeerEvent::Kind::kUp, kRouterOfJudge, 2}).ok());
  ASSERT_TRUE(judge().advance(Duration::milliseconds(1)).ok());
  const auto again = requests();
  ASSERT_THAT(again, SizeIs(2));
  EXPECT_EQ(again[0].attempt, 1U);
  EXPECT_EQ(again[1].attempt, 0U) << "it was not sent before";
  EXPECT_EQ(again[0].prompt_tokens, made[0].prompt_tokens);
  EXPECT_EQ(again[0].seed, made[0].seed);
  complete(made[0], "1");
  EXPECT_EQ(judge().counter("completions_unknown"), 1);
}

TEST_F(JudgeStory, QuestionsOfALostEnvironmentAreDropped) {
  ask(5);
  const auto made = requests();
  ASSERT_TRUE(judge().peer({PeerEvent::Kind::kDown, kAsker, 1}).ok());
  EXPECT_THAT(judge().take<Cancel>("cancel").at(0).requests, ElementsAre(made.at(0).request));
  complete(made[0], "", FinishReason::kCancelled);
  ASSERT_TRUE(judge().advance(Duration::seconds(90)).ok());
  EXPECT_THAT(scores(), IsEmpty());
}

TEST_F(JudgeStory, ADrainCancelsWhatIsOpen) {
  ask(5);
  const auto made = requests();
  ASSERT_TRUE(judge().drain().ok());
  EXPECT_FALSE(judge().idle());
  EXPECT_THAT(judge().take<Cancel>("cancel"), SizeIs(1));
  complete(made.at(0), "", FinishReason::kCancelled);
  EXPECT_TRUE(judge().idle());
  ask(6);
  EXPECT_THAT(requests(), IsEmpty());
}

TEST_F(JudgeStory, ARehearsalScoresTokensThatMeanNothing) {
  tokenizer.set_chat_source(nullptr);
  options.score = "yes_no";
  ask(5);
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(1));
  EXPECT_THAT(made[0].sampling.logit_bias, IsEmpty()) << "a scripted engine has no logits";
  complete(made[0], "qz");
  const auto said = scores();
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0].fault, "");
  EXPECT_GE(said[0].score, 0);
  EXPECT_LE(said[0].score, 1);
}

}  // namespace
}  // namespace primerl
