// Groups, turns and the gate of Rollout. rollout_end_test.cc tests how rollouts end.
#include <set>

#include "actors/env/rewards/exact.h"
#include "kernels/engine/kept_sets.h"
#include "tests/actors/rollout_story.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using RolloutTest = testing::RolloutStory;

TEST_F(RolloutTest, NothingOpensBeforeTheFirstPolicyIsLive) {
  task(0);
  EXPECT_THAT(requests(), IsEmpty());
  EXPECT_TRUE(rollout.is_paused("task"));
  live(0);
  EXPECT_THAT(requests(), SizeIs(2));
  EXPECT_FALSE(rollout.is_paused("task"));
}

TEST_F(RolloutTest, AGroupIsOneRequestPerMemberWithItsOwnSeedAndOneSalt) {
  live(3);
  task(7, "abc");
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(2));
  EXPECT_NE(made[0].seed, made[1].seed);
  EXPECT_NE(made[0].session, made[1].session);
  EXPECT_NE(made[0].request, made[1].request);
  for (const auto& request : made) {
    EXPECT_EQ(request.salt, "main:3");
    EXPECT_EQ(request.version, PolicyVersion(3));
    EXPECT_THAT(request.prompt_tokens, ElementsAre('a', 'b', 'c'));
    EXPECT_EQ(request.sampling.max_tokens, 8);
  }
  EXPECT_EQ(rollout.emissions("generate").size(), 0U);
}

TEST_F(RolloutTest, ATaskThatComesAgainOpensNoSecondGroup) {
  live(0);
  task(7, "abc");
  EXPECT_THAT(requests(), SizeIs(2));
  const Status again = rollout.give("task", Task{7, "abc"});
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.error().text(), HasSubstr("task 7 came while its group is open"));
  EXPECT_THAT(requests(), IsEmpty());
}

TEST_F(RolloutTest, EqualSeedsDrawEqualNumbers) {
  live(0);
  task(0);
  const auto first = requests();
  NodeRunner<Rollout> other;
  other.set_tenants({testing::a_tenant()});
  other.use("tokenizer", tokenizer);
  ASSERT_TRUE(other.give("policy", PolicyLive{PolicyVersion(0)}).ok());
  ASSERT_TRUE(other.give("task", Task{0, "ab"}).ok());
  const auto second = other.sent<GenerateRequest>("generate");
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(first[i].seed, second[i].seed);
}

TEST_F(RolloutTest, ALaterTenantOfASlotHasOtherNumbersAndSalts) {
  Tenant tenant = testing::a_tenant();
  tenant.tenancy = 2;
  rollout.set_tenants({tenant});
  live(3);
  task(7, "abc");
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(2));
  EXPECT_EQ(made[0].request, uint64_t{2} << 32);
  EXPECT_EQ(made[0].session, uint64_t{2} << 32);
  EXPECT_EQ(made[1].request, made[0].request + 1);
  EXPECT_EQ(made[0].salt, "main~2:3");
}

TEST_F(RolloutTest, TheGateShutsAfterTheLastGroupThatMayOpen) {
  live(0);  // two groups per batch, one step of lead: four may be open
  for (uint64_t i = 0; i < 6; ++i) task(i);
  EXPECT_THAT(requests(), SizeIs(8));
  EXPECT_EQ(rollout.num_waiting("task"), 1U) << "one is held, one waits at the paused input";
  EXPECT_EQ(rollout.counter("groups_opened"), 4);
}

struct OnPolicyRollout : testing::RolloutStory {
  OnPolicyRollout() { rollout.set_tenants({testing::a_tenant(2, 2, 0)}); }
};

TEST_F(OnPolicyRollout, OpensNoMoreGroupsThanOneBatchTakes) {
  live(0);
  for (uint64_t i = 0; i < 4; ++i) task(i);
  EXPECT_THAT(requests(), SizeIs(4)) << "two groups of two";
  live(1);
  EXPECT_THAT(requests(), SizeIs(4)) << "the next batch's";
}

struct NarrowRollout : testing::RolloutStory {
  NarrowRollout() : RolloutStory({.model = "", .max_inflight = 3}) {}
};

TEST_F(NarrowRollout, OpensAGroupOnlyWhenAllItsRolloutsFit) {
  live(0);
  task(0);
  task(1);
  const auto first = requests();
  ASSERT_THAT(first, SizeIs(2));
  complete(first[0]);
  observe(actions().front(), 1);
  EXPECT_THAT(requests(), SizeIs(2)) << "one slot of three was taken, the group of two fits";
}

TEST_F(NarrowRollout, RefusesFewerSlotsThanAGroupHas) {
  NodeRunner<Rollout> small({.model = "", .max_inflight = 1});
  small.set_tenants({testing::a_tenant()});
  small.use("tokenizer", tokenizer);
  const Status status = small.start();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().text(), HasSubstr("group_size 2"));
}

TEST_F(RolloutTest, AFinishedGroupGoesToTheTrainerWithParallelArrays) {
  live(0);
  task(0);
  play(requests());
  const auto delivered = groups();
  ASSERT_THAT(delivered, SizeIs(1));
  const TrajectoryGroup& group = delivered[0];
  EXPECT_EQ(group.version, PolicyVersion(0));
  ASSERT_THAT(group.members, SizeIs(2));
  const Trajectory& member = group.members[1];
  EXPECT_THAT(member.tokens, ElementsAre('a', 'b', 'x', 'y', '\n'));
  EXPECT_THAT(member.sampled, ElementsAre(0, 0, 1, 1, 1));
  EXPECT_THAT(member.logprobs, ElementsAre(0, 0, -0.25F, -0.25F, -0.25F));
  EXPECT_THAT(member.spans, ElementsAre(VersionSpan{PolicyVersion(0), 2, 5}));
  EXPECT_EQ(member.reward, 1);
  EXPECT_THAT(ends(), IsEmpty()) << "the trainer has not said what became of it";
}

TEST_F(RolloutTest, AnEngineWithoutTheSessionIsSentTheWholePromptOnce) {
  live(0);
  task(0);
  const auto first = requests()[0];
  complete(first);
  observe(actions().front(), 0, false, "cd");
  const auto end = requests()[0];
  EXPECT_EQ(end.known.num_tokens, 2);
  end_without_tokens(end, FinishReason::kUnknownSession);
  const auto whole = requests();
  ASSERT_THAT(whole, SizeIs(1));
  EXPECT_EQ(whole[0].known, TokenPrefix());
  EXPECT_THAT(whole[0].prompt_tokens, ElementsAre('a', 'b', 'x', 'y', '\n', 'c', 'd'));
  EXPECT_EQ(whole[0].seed, end.seed) << "the same draws";
  EXPECT_EQ(whole[0].attempt, end.attempt) << "no engine was lost";
  EXPECT_NE(whole[0].request, end.request);
  EXPECT_EQ(rollout.counter("prompts_sent_whole"), 1);
  // After that only the end of the prompt is sent again.
  complete(whole[0], "z\n");
  observe(actions().front(), 0, false, "e");
  const auto next = requests()[0];
  EXPECT_EQ(next.known, TokenPrefix().extended(whole[0].prompt_tokens));
  EXPECT_THAT(next.prompt_tokens, ElementsAre('z', '\n', 'e'));
}

TEST_F(RolloutTest, AnEngineThatRefusesAWholePromptAsUnknownFailsTheRollout) {
  live(0);
  task(0);
  end_without_tokens(requests()[0], FinishReason::kUnknownSession);
  EXPECT_THAT(requests(), IsEmpty());
  ASSERT_THAT(end_names(), ElementsAre("failed"));
  EXPECT_THAT(*ends()[0].get_string("reason"),
              HasSubstr("answered unknown_session to a whole prompt"));
}

TEST_F(RolloutTest, ATurnAfterALostEngineIsWhole) {
  live(0);
  task(0);
  complete(requests()[0]);
  observe(actions().front(), 0, false, "cd");
  end_without_tokens(requests()[0], FinishReason::kEngineLost);
  const auto again = requests();
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].known, TokenPrefix());
  EXPECT_EQ(again[0].prompt_tokens.size(), 7U);
}

TEST_F(RolloutTest, ATurnExtendsTheTokenPrefixExactly) {
  live(0);
  task(0);
  const auto first = requests();
  complete(first[0]);
  const auto action = actions().front();
  EXPECT_EQ(action.turn, 0);
  EXPECT_THAT(action.texts, ElementsAre("xy")) << "without the text of its stop token";
  observe(action, 0, false, "cd");
  const auto second = requests();
  ASSERT_THAT(second, SizeIs(1));
  EXPECT_EQ(second[0].session, first[0].session);
  EXPECT_EQ(second[0].known, TokenPrefix().extended(std::vector<int32_t>{'a', 'b'}));
  EXPECT_THAT(second[0].prompt_tokens, ElementsAre('x', 'y', '\n', 'c', 'd'));
  EXPECT_NE(second[0].seed, first[0].seed);
  complete(second[0], "z\n");
  const auto next = actions().front();
  EXPECT_EQ(next.turn, 1);
  EXPECT_EQ(next.first_turn, 1);
  EXPECT_THAT(next.texts, ElementsAre("z"));
  observe(next, 1);
  complete(first[1]);
  observe(actions().front(), 0);
  const auto member = groups().front().members[0];
  EXPECT_EQ(member.num_turns, 2);
  EXPECT_THAT(member.sampled, ElementsAre(0, 0, 1, 1, 1, 0, 0, 1, 1));
  EXPECT_THAT(member.spans, ElementsAre(VersionSpan{PolicyVersion(0), 2, 5},
                                        VersionSpan{PolicyVersion(0), 7, 9}));
}

/// A turn ends with "</a>". The environment reads the text before it, or the whole text.
struct StoppedRollout : testing::RolloutStory {
  explicit StoppedRollout(bool include_stop = false) : RolloutStory({}, tenant(include_stop)) {}
  static Tenant tenant(bool include_stop) {
    Tenant tenant = testing::a_tenant(1);
    tenant.sampling.stop = {"never", "</a>"};
    tenant.sampling.stop_ids = {'#'};
    tenant.sampling.include_stop = include_stop;
    return tenant;
  }
  std::string text_of(const std::string& completion, FinishReason end = FinishReason::kStop) {
    task(next_task++);
    complete(requests().back(), completion, end);
    const auto said = actions();
    EXPECT_THAT(said, SizeIs(1));
    if (said.empty()) return "nothing was said";
    observe(said.front(), 1);
    return said.front().texts.back();
  }
  uint64_t next_task = 0;
};
struct WholeTextRollout : StoppedRollout {
  WholeTextRollout() : StoppedRollout(true) {}
};

TEST_F(StoppedRollout, SendsTheEnvironmentTheTextBeforeItsStop) {
  live(0);
  EXPECT_EQ(text_of("42</a>"), "42");
  EXPECT_EQ(text_of("4#"), "4") << "a stop token";
  EXPECT_EQ(text_of("42\n"), "42") << "the model's end token";
  EXPECT_EQ(text_of("42</a", FinishReason::kLength), "42</a");
}

TEST_F(StoppedRollout, ExactFindsARightAnswerRight) {
  live(0);
  const auto exact = *make_exact({});
  EXPECT_EQ(*exact->score({"6*7", "42"}, {text_of("42</a>")}, 0), 1);
}

TEST_F(StoppedRollout, TrainsOnEveryTokenAndExtendsThemExactly) {
  live(0);
  task(0, "q");
  complete(requests().front(), "42</a>");
  observe(actions().front(), 0, false, "cd");
  const auto second = requests();
  ASSERT_THAT(second, SizeIs(1));
  EXPECT_THAT(second[0].prompt_tokens, ElementsAre('4', '2', '<', '/', 'a', '>', 'c', 'd'));
  complete(second[0], "7#");
  observe(actions().front(), 1);
  const auto member = groups().front().members[0];
  EXPECT_THAT(member.tokens, ElementsAre('q', '4', '2', '<', '/', 'a', '>', 'c', 'd', '7', '#'));
  EXPECT_THAT(member.sampled, ElementsAre(0, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1));
}

TEST_F(WholeTextRollout, SendsTheEnvironmentTheStopToo) {
  live(0);
  EXPECT_EQ(text_of("42</a>"), "42</a>");
  EXPECT_EQ(text_of("4#"), "4#");
}

struct TruncatedRollout : testing::RolloutStory {
  TruncatedRollout() : RolloutStory({}, tenant()) { kept = sets_of; }
  static Tenant tenant() {
    Tenant tenant = testing::a_tenant();
    tenant.sampling.top_p = 0.9;
    return tenant;
  }
  /// For each token, a set of it and the next one.
  static Blob sets_of(const std::vector<int32_t>& tokens) {
    std::vector<std::byte> bytes;
    for (const int32_t token : tokens) append_kept(std::vector{token, token + 1}, 256, bytes);
    return Blob(std::move(bytes));
  }
  /// Answers both members of a group, the first with these sets; returns its fault.
  std::string fault_with(Blob sets) {
    live(0);
    task(0);
    const auto made = requests();
    kept = [&](const auto&) { return sets; };
    complete(made[0]);
    kept = sets_of;
    complete(made[1]);
    for (const auto& action : actions()) observe(action, 1);
    const auto group = groups().at(0);
    EXPECT_FALSE(group.members[1].is_failed) << "only the one without its sets fails";
    EXPECT_EQ(group.members[1].kept, sets_of({'x', 'y', '\n'}));
    return group.members[0].fault;
  }
};

TEST_F(TruncatedRollout, ACompletionWithoutItsKeptSetsFails) {
  EXPECT_THAT(fault_with({}), HasSubstr("the engine sent no kept sets"));
}

TEST_F(TruncatedRollout, ACompletionWithKeptSetsOfOtherTokensFails) {
  EXPECT_THAT(fault_with(sets_of({'x', 'q', '\n'})), HasSubstr("not in the set it was drawn from"));
}

TEST_F(TruncatedRollout, ACompletionWithTooFewKeptSetsFails) {
  EXPECT_THAT(fault_with(sets_of({'x', 'y'})), HasSubstr("2 kept sets for 3 sampled tokens"));
}

TEST_F(TruncatedRollout, ACompletionWithBrokenKeptSetsFails) {
  EXPECT_THAT(fault_with(Blob(std::vector<std::byte>(3, std::byte{0xFF}))), HasSubstr("malformed"));
}

TEST_F(TruncatedRollout, ATrajectoryHasTheKeptSetsOfAllItsTurns) {
  live(0);
  task(0);
  const auto first = requests();
  complete(first[0]);
  observe(actions().front(), 0, false, "cd");
  complete(requests()[0], "z\n");
  observe(actions().front(), 1);
  complete(first[1]);
  observe(actions().front(), 0);
  const auto member = groups().front().members[0];
  EXPECT_THAT(member.sampled, ElementsAre(0, 0, 1, 1, 1, 0, 0, 1, 1));
  EXPECT_EQ(member.kept, sets_of({'x', 'y', '\n', 'z', '\n'}));
}

TEST_F(RolloutTest, KeptSetsThatWereNotRequestedFailTheCompletion) {
  kept = TruncatedRollout::sets_of;
  live(0);
  task(0);
  const auto made = requests();
  complete(made[0]);
  kept = [](const auto&) { return Blob(); };
  complete(made[1]);
  observe(actions().front(), 1);
  EXPECT_THAT(groups().at(0).members[0].fault, HasSubstr("that were not requested"));
}

TEST_F(RolloutTest, SpecialTokensWrittenOutInTasksAndObservationsStayText) {
  live(0);
  task(0, "a<eos>");
  const auto made = requests();
  EXPECT_THAT(made[0].prompt_tokens, ElementsAre('a', '<', 'e', 'o', 's', '>'));
  complete(made[0], "x");
  observe(actions().front(), 0, false, "<eos>");
  EXPECT_THAT(requests().front().prompt_tokens, ElementsAre('x', '<', 'e', 'o', 's', '>'));
}

struct TightRollout : testing::RolloutStory {
  TightRollout() : RolloutStory({}, tight()) {}
  static Tenant tight() {
    Tenant tenant = testing::a_tenant();
    tenant.seq_len = 6;
    tenant.turns_max = 2;
    return tenant;
  }
};

TEST_F(TightRollout, NoTurnGrowsPastSeqLen) {
  live(0);
  task(0, "abcde");
  const auto made = requests();
  EXPECT_EQ(made[0].sampling.max_tokens, 1);
  complete(made[0], "x", FinishReason::kLength);
  observe(actions().front(), 0, false, "more");
  EXPECT_THAT(requests(), IsEmpty()) << "no room is left";
  complete(made[1], "y");
  observe(actions().front(), 1);
  const auto group = groups().front();
  EXPECT_TRUE(group.members[0].is_truncated);
  EXPECT_FALSE(group.members[0].is_failed);
  EXPECT_EQ(group.members[0].reward, 0);
}

TEST_F(TightRollout, AnObservationThatLeavesSpaceForOneTokenIsAppended) {
  live(0);
  task(0, "ab");
  const auto made = requests();
  EXPECT_EQ(made[0].sampling.max_tokens, 4);
  complete(made[0], "x");
  observe(actions().front(), 0, false, "cd");  // five tokens, six are allowed
  const auto second = requests();
  ASSERT_THAT(second, SizeIs(1));
  EXPECT_EQ(second[0].sampling.max_tokens, 1);
  complete(second[0], "y", FinishReason::kLength);
  observe(actions().front(), 1);
  complete(made[1], "x");
  observe(actions().front(), 0);
  const auto member = groups().front().members[0];
  EXPECT_THAT(member.tokens, ElementsAre('a', 'b', 'x', 'c', 'd', 'y'));
  EXPECT_EQ(member.reward, 1);
}

TEST_F(TightRollout, AnObservationOneTokenLongerIsLeftOutAndEndsTheRolloutTruncated) {
  live(0);
  task(0, "ab");
  const auto made = requests();
  complete(made[0], "x");
  observe(actions().front(), 0, false, "cde");  // six tokens: no token could follow
  EXPECT_THAT(requests(), IsEmpty());
  EXPECT_EQ(rollout.counter("observations_too_long"), 1);
  complete(made[1], "x");
  observe(actions().front(), 1);
  const auto member = groups().front().members[0];
  EXPECT_FALSE(member.is_failed);
  EXPECT_TRUE(member.is_truncated);
  EXPECT_EQ(member.reward, 0);
  EXPECT_THAT(member.tokens, ElementsAre('a', 'b', 'x')) << "it ends with what was sampled last";
  EXPECT_THAT(member.sampled, ElementsAre(0, 0, 1));
  EXPECT_THAT(member.logprobs, SizeIs(3));
}

TEST_F(TightRollout, ACompletionLongerThanRequestedFailsItsRollout) {
  live(0);
  task(0, "ab");
  const auto made = requests();
  complete(made[0], "wxyz");
  EXPECT_THAT(actions(), SizeIs(1)) << "four tokens were asked for";
  complete(made[1], "vwxyz");
  EXPECT_THAT(actions(), IsEmpty());
  EXPECT_THAT(*ends()[0].get_string("reason"), HasSubstr("gave 5 tokens, 4 were requested"));
}

TEST_F(TightRollout, APromptThatFillsSeqLenFailsItsGroup) {
  live(0);
  task(0, "abcdef");
  EXPECT_THAT(requests(), IsEmpty());
  const auto group = groups().front();
  EXPECT_THAT(group.members[0].fault, HasSubstr("seq_len 6"));
  EXPECT_TRUE(group.members[1].is_failed);
}

TEST_F(TightRollout, ATrajectoryHasAtMostTurnsMaxTurns) {
  live(0);
  task(0, "a");
  const auto made = requests();
  complete(made[0], "x");
  observe(actions().front(), 0, false, "b");
  const auto second = requests();
  ASSERT_THAT(second, SizeIs(1));
  complete(second[0], "y");
  observe(actions().front(), 0, false, "c");
  EXPECT_THAT(requests(), IsEmpty());
  complete(made[1], "x");
  observe(actions().front(), 1);
  EXPECT_TRUE(groups().front().members[0].is_truncated);
}

}  // namespace
}  // namespace primerl
