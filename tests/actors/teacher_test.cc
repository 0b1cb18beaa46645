// The node that asks a frozen model how likely the tokens of each group are.
#include "actors/teacher/teacher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "graph/testing/node_runner.h"
#include "tests/actors/fakes.h"

namespace primerl {
namespace {

using testing::a_group;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr InstanceId kTeacherRouter(7);
constexpr InstanceId kPlayer(3);
constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();

struct TeacherStory : ::testing::Test {
  TeacherStory() {
    tenant = testing::a_tenant();
    tenant.teacher = {.model = "big", .timeout = Duration::seconds(5)};
  }
  NodeRunner<Teacher>& teacher() {
    if (runner != nullptr) return *runner;
    runner = std::make_unique<NodeRunner<Teacher>>(options);
    runner->set_tenants({tenant});
    runner->use("tokenizer", tokenizer);
    runner->set_targets("generate", {kTeacherRouter});
    return *runner;
  }
  void give(const TrajectoryGroup& group) {
    ASSERT_TRUE(teacher().give("group", group, {TenantSlot(0), kPlayer, kPlayer}).ok());
  }
  /// All requests that can be sent now.
  std::vector<GenerateRequest> requests() {
    EXPECT_TRUE(teacher().advance(Duration::milliseconds(1)).ok());
    return teacher().take<GenerateRequest>("generate");
  }
  std::vector<TrajectoryGroup> groups() { return teacher().take<TrajectoryGroup>("scored"); }
  void complete(const GenerateRequest& request, std::vector<float> logprobs,
                FinishReason end = FinishReason::kLength) {
    Completion completion;
    completion.request = request.request;
    completion.end = end;
    completion.detail = "as the test says";
    completion.tokens = {65};
    completion.logprobs = {-1};
    completion.prompt_logprobs = std::move(logprobs);
    ASSERT_TRUE(teacher().give("completion", completion).ok());
  }
  /// The one group of two members whose first sample gets this answer, and its second a good one.
  TrajectoryGroup answered(std::vector<float> logprobs, FinishReason end = FinishReason::kLength) {
    give(a_group(0, 0, {0, 1}));
    const auto made = requests();
    EXPECT_THAT(made, SizeIs(2));
    complete(made[0], std::move(logprobs), end);
    complete(made[1], {-9, -1, -2, -3});
    const auto sent = groups();
    EXPECT_THAT(sent, SizeIs(1));
    return sent.empty() ? TrajectoryGroup() : sent[0];
  }

  Tenant tenant;
  TeacherOptions options;
  testing::ByteTokenizer tokenizer;
  std::unique_ptr<NodeRunner<Teacher>> runner;
};

TEST_F(TeacherStory, EachSampledTokenGetsItsLogProbability) {
  give(a_group(4, 2, {0, 1}));
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(2));
  EXPECT_THAT(made[0].prompt_tokens, ElementsAre(65, 66, 97, 98, 99));
  EXPECT_TRUE(made[0].sampling.prompt_logprobs);
  EXPECT_EQ(made[0].sampling.max_tokens, 1);
  EXPECT_EQ(made[0].version, PolicyVersion()) << "a frozen engine has no version";
  EXPECT_TRUE(validate(made[0].sampling).ok());
  EXPECT_GE(made[0].request, kTeacherRequestsFrom);
  complete(made[1], {-9, -4, -5, -6});
  EXPECT_THAT(groups(), IsEmpty()) << "a group waits for all its samples";
  complete(made[0], {-9, -1, -2, -3});
  const auto sent = groups();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].ordinal, 4U);
  EXPECT_EQ(sent[0].version, PolicyVersion(2));
  EXPECT_THAT(sent[0].members[0].reference, ElementsAre(0, 0, -1, -2, -3));
  EXPECT_THAT(sent[0].members[1].reference, ElementsAre(0, 0, -4, -5, -6));
  EXPECT_EQ(sent[0].members[0].fault, "");
  EXPECT_FALSE(sent[0].is_cancelled);
  EXPECT_TRUE(teacher().idle());
}

TEST_F(TeacherStory, EachSampleOfAMemberIsASequenceOfItsOwn) {
  auto group = a_group(0, 0, {1});
  group.members[0].tokens = {65, 97, 66, 98, 67};
  group.members[0].sampled = {0, 1, 0, 1, 0};
  group.members[0].logprobs = {0, -1, 0, -1, 0};
  group.members[0].sample_begins = {2, 4};
  give(group);
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(2)) << "one token alone has no log-probability";
  EXPECT_THAT(made[0].prompt_tokens, ElementsAre(65, 97));
  EXPECT_THAT(made[1].prompt_tokens, ElementsAre(66, 98));
  complete(made[0], {-1});
  complete(made[1], {-2});
  EXPECT_THAT(groups().at(0).members[0].reference, ElementsAre(0, -1, 0, -2, 0));
}

TEST_F(TeacherStory, AMemberWithoutGoodLogProbabilitiesFailsAlone) {
  const std::vector<std::pair<std::vector<float>, std::string>> bad = {
      {{-9, kNoNumber, -2, -3}, "the log-probability of token 2 is nan"},
      {{-9, -1, -2, -std::numeric_limits<float>::infinity()}, "token 4 is -inf"},
      {{-9, -1001, -2, -3}, "token 2 is -1001"},
      {{-9, 0.5F, -2, -3}, "token 2 is 0.5"},
      {{-9, -1, -2}, "3 log-probabilities for 5 tokens"},
      {{}, "0 log-probabilities for 5 tokens"},
  };
  int64_t num_failed = 0;
  for (const auto& [logprobs, words] : bad) {
    const auto group = answered(logprobs);
    EXPECT_THAT(group.members.at(0).fault, HasSubstr("the teacher: "));
    EXPECT_THAT(group.members[0].fault, HasSubstr(words));
    EXPECT_THAT(group.members[0].reference, IsEmpty());
    EXPECT_FALSE(group.members[0].is_failed) << "the trainer refuses it, and tells Rollout";
    EXPECT_EQ(group.members[1].fault, "");
    EXPECT_THAT(group.members[1].reference, SizeIs(5));
    EXPECT_EQ(teacher().counter("teacher_members_failed"), ++num_failed);
  }
}

struct TopTeacherStory : TeacherStory {
  TopTeacherStory() {
    tenant.teacher.top_k = 2;
    tenant.objective = "gkd";
  }
  /// Four rows of two tokens for a sample of five tokens.
  void complete_top(const GenerateRequest& request, std::vector<int32_t> tokens,
                    std::vector<float> logprobs) {
    Completion completion;
    completion.request = request.request;
    completion.end = FinishReason::kLength;
    completion.prompt_logprobs = {-9, -1, -2, -3};
    completion.prompt_top_tokens = std::move(tokens);
    completion.prompt_top_logprobs = std::move(logprobs);
    ASSERT_TRUE(teacher().give("completion", completion).ok());
  }
};

const std::vector<int32_t> kTopRows = {5, 6, 97, 1, 98, 2, 99, 3};
const std::vector<float> kTopNumbers = {-1, -2, -0.5F, -1.5F, -0.75F, -2, -0.25F, -3};

TEST_F(TopTeacherStory, EachSampledTokenGetsTheLikeliestTokensOfItsPosition) {
  give(a_group(0, 0, {0, 1}));
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(2));
  EXPECT_EQ(made[0].sampling.num_prompt_top_logprobs, 2);
  EXPECT_TRUE(validate(made[0].sampling).ok());
  complete_top(made[0], kTopRows, kTopNumbers);
  auto other = kTopRows;
  other[2] = 42;
  complete_top(made[1], other, kTopNumbers);
  const auto sent = groups();
  ASSERT_THAT(sent, SizeIs(1));
  const auto& members = sent[0].members;
  EXPECT_THAT(members[0].fault + members[1].fault, "");
  EXPECT_THAT(members[0].top_tokens, ElementsAre(97, 1, 98, 2, 99, 3));
  EXPECT_THAT(members[0].top_logprobs, ElementsAre(-0.5F, -1.5F, -0.75F, -2, -0.25F, -3));
  EXPECT_THAT(members[1].top_tokens, ElementsAre(42, 1, 98, 2, 99, 3));
  EXPECT_THAT(members[1].reference, ElementsAre(0, 0, -1, -2, -3));
}

TEST_F(TopTeacherStory, EachSampleHasTheRowsOfItsOwnTokens) {
  auto group = a_group(0, 0, {1});
  group.members[0].tokens = {65, 97, 66, 98};
  group.members[0].sampled = {0, 1, 0, 1};
  group.members[0].logprobs = {0, -1, 0, -1};
  group.members[0].sample_begins = {2};
  give(group);
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(2));
  for (const size_t i : {size_t{1}, size_t{0}}) {  // in any order
    Completion completion;
    completion.request = made[i].request;
    completion.end = FinishReason::kLength;
    completion.prompt_logprobs = {-1};
    completion.prompt_top_tokens = {static_cast<int32_t>(10 * i), 7};
    completion.prompt_top_logprobs = {-1, -2};
    ASSERT_TRUE(teacher().give("completion", completion).ok());
  }
  EXPECT_THAT(groups().at(0).members[0].top_tokens, ElementsAre(0, 7, 10, 7));
}

TEST_F(TopTeacherStory, AMemberWithoutGoodLikeliestTokensFailsAlone) {
  const auto changed = [](auto change) {
    auto rows = std::pair(kTopRows, kTopNumbers);
    change(rows.first, rows.second);
    return rows;
  };
  const std::pair<std::pair<std::vector<int32_t>, std::vector<float>>, std::string> bad[] = {
      {changed([](auto& tokens, auto&) { tokens.pop_back(); }), "7 likeliest tokens of 8"},
      {changed([](auto& tokens, auto& numbers) {
         tokens.clear();
         numbers.clear();
       }),
       "0 likeliest tokens of 8"},
      {changed([](auto& tokens, auto&) { tokens[3] = 97; }), "token 97 is twice"},
      {changed([](auto& tokens, auto&) { tokens[5] = -1; }), "at token 3 is -1"},
      {changed([](auto&, auto& numbers) { numbers[7] = kNoNumber; }), "at token 4 is nan"},
  };
  for (const auto& [rows, words] : bad) {
    give(a_group(0, 0, {0, 1}));
    const auto made = requests();
    ASSERT_THAT(made, SizeIs(2));
    complete_top(made[0], rows.first, rows.second);
    complete_top(made[1], kTopRows, kTopNumbers);
    const auto group = groups().at(0);
    EXPECT_THAT(group.members[0].fault, HasSubstr(words));
    EXPECT_THAT(group.members[0].top_tokens, IsEmpty());
    EXPECT_EQ(group.members[1].fault, "");
    EXPECT_THAT(group.members[1].top_tokens, SizeIs(6));
  }
}

TEST_F(TopTeacherStory, TokensThatWereNotSampledMayHaveAnyLikeliestTokens) {
  auto tokens = kTopRows;
  tokens[0] = tokens[1] = -1;
  give(a_group(0, 0, {0}));
  complete_top(requests().at(0), tokens, kTopNumbers);
  EXPECT_EQ(groups().at(0).members[0].fault, "");
}

TEST_F(TeacherStory, ATokenThatWasNotSampledMayBeImpossible) {
  const auto group = answered({-std::numeric_limits<float>::infinity(), -1000, -2, 0.01F});
  EXPECT_EQ(group.members.at(0).fault, "");
  EXPECT_THAT(group.members[0].reference, ElementsAre(0, 0, -1000, -2, 0.01F));
}

TEST_F(TeacherStory, ARefusedRequestFailsItsMemberAlone) {
  const auto group = answered({}, FinishReason::kRefused);
  EXPECT_THAT(group.members.at(0).fault, HasSubstr("the teacher: refused: as the test says"));
  EXPECT_THAT(group.members[1].reference, SizeIs(5));
}

TEST_F(TeacherStory, ALostEngineIsAskedAgainUpToABound) {
  options.attempts_max = 1;
  give(a_group(0, 0, {1}));
  for (uint32_t attempt = 0; attempt < 2; ++attempt) {
    const auto made = requests();
    ASSERT_THAT(made, SizeIs(1));
    EXPECT_EQ(made[0].attempt, attempt);
    complete(made[0], {}, FinishReason::kEngineLost);
  }
  EXPECT_THAT(groups().at(0).members[0].fault, HasSubstr("was lost or failed 2 times"));
}

TEST_F(TeacherStory, ADeadlineEndsTheSamplesOfAGroup) {
  give(a_group(0, 0, {0, 1}));
  const auto made = requests();
  complete(made.at(0), {-9, -1, -2, -3});
  ASSERT_TRUE(teacher().advance(Duration::milliseconds(4998)).ok());
  EXPECT_THAT(groups(), IsEmpty());
  ASSERT_TRUE(teacher().advance(Duration::milliseconds(1)).ok());
  const auto sent = groups();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_THAT(sent[0].members[0].reference, SizeIs(5));
  EXPECT_THAT(sent[0].members[1].fault, HasSubstr("no log-probabilities within 5s"));
  EXPECT_THAT(teacher().take<Cancel>("cancel").at(0).requests, ElementsAre(made.at(1).request));
  EXPECT_FALSE(teacher().idle()) << "the cancelled request is not answered yet";
}

TEST_F(TeacherStory, MoreRequestsThanItsBoundWait) {
  options.requests_max = 2;
  give(a_group(0, 0, {0, 1, 2}));
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(2));
  complete(made[0], {-9, -1, -2, -3});
  EXPECT_THAT(requests(), SizeIs(1));
}

TEST_F(TeacherStory, MoreGroupsThanItsBoundWaitOnTheEdge) {
  options.groups_max = 2;
  give(a_group(0, 0, {1}));
  EXPECT_FALSE(teacher().is_paused("group"));
  give(a_group(1, 0, {1}));
  EXPECT_TRUE(teacher().is_paused("group"));
  const auto made = requests();
  complete(made.at(0), {-9, -1, -2, -3});
  EXPECT_FALSE(teacher().is_paused("group"));
}

TEST_F(TeacherStory, MembersThatCannotBeCutAreLeftToTheTrainer) {
  auto group = a_group(0, 0, {0, 1, 2});
  group.members[0].is_failed = true;
  group.members[0].tokens.clear();
  group.members[1].sample_begins = {9};
  group.members[2].sampled.pop_back();
  give(group);
  EXPECT_THAT(requests(), IsEmpty());
  EXPECT_THAT(groups(), SizeIs(1));
}

TEST_F(TeacherStory, GroupsOfATenantWithoutATeacherAndHeldOutRowsPass) {
  give(a_group(kEvaluationOrdinals, 0, {1}));
  EXPECT_THAT(groups(), SizeIs(1));
  runner.reset();
  tenant.teacher = {};
  give(a_group(0, 0, {0, 1}));
  EXPECT_THAT(groups().at(0).members[0].reference, IsEmpty());
  EXPECT_THAT(requests(), IsEmpty());
}

TEST_F(TeacherStory, ALostRouterIsAskedAgain) {
  give(a_group(0, 0, {0, 1}));
  const auto made = requests();
  ASSERT_TRUE(teacher().peer({PeerEvent::Kind::kDown, kTeacherRouter, 1}).ok());
  EXPECT_THAT(requests(), IsEmpty()) << "a request to a router that is down is lost";
  ASSERT_TRUE(teacher().peer({PeerEvent::Kind::kUp, kTeacherRouter, 2}).ok());
  const auto again = requests();
  ASSERT_THAT(again, SizeIs(2));
  EXPECT_EQ(again[0].attempt, 1U);
  EXPECT_EQ(again[0].prompt_tokens, made.at(0).prompt_tokens);
}

TEST_F(TeacherStory, ADrainSendsUnfinishedGroupsAsCancelled) {
  give(a_group(0, 0, {0, 1}));
  const auto made = requests();
  ASSERT_TRUE(teacher().drain().ok());
  const auto sent = groups();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_TRUE(sent[0].is_cancelled);
  EXPECT_THAT(teacher().take<Cancel>("cancel"), SizeIs(1));
  EXPECT_FALSE(teacher().idle());
  complete(made.at(0), {}, FinishReason::kCancelled);
  complete(made.at(1), {}, FinishReason::kCancelled);
  EXPECT_TRUE(teacher().idle());
  give(a_group(1, 0, {0, 1}));
  EXPECT_TRUE(groups().at(0).is_cancelled) << "also a group that comes later";
}

}  // namespace
}  // namespace primerl
