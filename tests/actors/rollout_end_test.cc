// Every rollout ends exactly once, and rollouts.jsonl says how.
#include <map>

#include "tests/actors/rollout_story.h"

namespace primerl {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using RolloutEndTest = testing::RolloutStory;

TEST_F(RolloutEndTest, TrainedSaysStepRewardAndStaleness) {
  live(0);
  task(4, "ab");
  play(requests());
  end(groups().front(), RolloutEnd::kTrained, 2);
  const auto lines = ends();
  ASSERT_THAT(lines, SizeIs(2));
  const Json& line = lines[1];
  EXPECT_EQ(*line.get_string("rollout"), "main-4-0-1");
  EXPECT_EQ(*line.get_string("tenant"), "main");
  EXPECT_EQ(*line.get_int("group"), 4);
  EXPECT_EQ(*line.get_string("end"), "trained");
  EXPECT_EQ(*line.get_int("step"), 2);
  EXPECT_EQ(*line.get_int("staleness"), 1);
  EXPECT_EQ(line.find("reward")->as_double(), 1);
  EXPECT_EQ(*line.get_string("prompt"), "ab");
  EXPECT_EQ(*line.get_string("completion"), "xy") << "as the environment read it";
  EXPECT_EQ(line.find("versions")->dump(), R"([{"version":0,"begin":2,"end":5}])");
  EXPECT_EQ(line.find("tokens"), nullptr);
  EXPECT_TRUE(rollout.idle());
}

/// The tenant's trainer has made its last step. Other tenants continue and need the engine.
TEST_F(RolloutEndTest, AfterACancelledGroupNoOtherIsOpened) {
  live(0);
  task(4);
  task(5);
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(4));
  play({made[0], made[1]});
  end(groups().front(), RolloutEnd::kCancelled);
  EXPECT_THAT(end_names(), ElementsAre("cancelled", "cancelled", "cancelled", "cancelled"));
  EXPECT_EQ(*ends()[3].get_string("reason"), "why");
  EXPECT_THAT(rollout.take<Cancel>("cancel"), SizeIs(1)) << "of the group under way";
  task(6);
  EXPECT_THAT(requests(), IsEmpty());
  EXPECT_TRUE(rollout.is_paused("task"));
}

struct TokenLog : testing::RolloutStory {
  TokenLog() : RolloutStory({.model = "", .log_tokens = true}) {}
};

TEST_F(TokenLog, WritesTokensOnRequest) {
  live(0);
  task(0);
  play(requests());
  end(groups().front(), RolloutEnd::kTrained, 1);
  EXPECT_EQ(ends()[0].find("tokens")->dump(), "[97,98,120,121,10]");
  EXPECT_EQ(ends()[0].find("logprobs")->as_array().size(), 5U);
}

TEST_F(RolloutEndTest, AFailedMemberIsWrittenAtOnceAndNotAgain) {
  live(0);
  task(0);
  const auto made = requests();
  end_without_tokens(made[0], FinishReason::kRefused);
  EXPECT_THAT(end_names(), ElementsAre("failed"));
  play({made[1]});
  const auto group = groups().front();
  EXPECT_TRUE(group.members[0].is_failed);
  EXPECT_THAT(group.members[0].fault, HasSubstr("refused"));
  EXPECT_THAT(group.members[0].tokens, IsEmpty());
  EXPECT_FALSE(group.members[1].is_failed);
  end(group, RolloutEnd::kTrained, 1);
  EXPECT_THAT(end_names(), ElementsAre("failed", "trained"));
  end(group, RolloutEnd::kTrained, 1);
  EXPECT_THAT(end_names(), SizeIs(2));
  EXPECT_EQ(rollout.counter("ends_of_unknown_groups"), 1);
}

TEST_F(RolloutEndTest, AMemberThatTheTrainerRefusesEndsFailedAndTheOthersAsTheirGroup) {
  live(0);
  task(0);
  play(requests());
  const auto group = groups().front();
  GroupEnded ended{group.ordinal, group.attempt, RolloutEnd::kTrained, 1, "", {{0, "too long"}}};
  ended.refused.push_back({7, "no such member"});
  ASSERT_TRUE(rollout.give("ended", ended).ok());
  EXPECT_THAT(end_names(), ElementsAre("failed", "trained"));
  EXPECT_EQ(*ends()[0].get_string("reason"), "too long");
  EXPECT_EQ(*ends()[0].get_int("step"), 0);
  EXPECT_EQ(*ends()[1].get_int("step"), 1);
  EXPECT_TRUE(rollout.idle());
}

TEST_F(RolloutEndTest, AnInvalidAnswerFailsOnlyItsRollout) {
  live(0);
  task(0, "a!b");
  EXPECT_THAT(groups().front().members[0].fault, HasSubstr("'!' has no token"));
  task(1);
  auto made = requests();
  complete(made[0], "\n");
  complete(made[1], "");
  auto group = groups().front();
  EXPECT_THAT(group.members[0].fault, HasSubstr("no token has the id 1"));
  EXPECT_THAT(group.members[1].fault, HasSubstr("0 tokens"));
  task(2);
  made = requests();
  complete(made[0]);
  complete(made[1]);
  const auto acted = actions();
  observe(acted[0], 0, true, "", "it broke");
  observe(acted[1], NAN);
  group = groups().front();
  EXPECT_THAT(group.members[0].fault, HasSubstr("it broke"));
  EXPECT_THAT(group.members[1].fault, HasSubstr("reward nan"));
  EXPECT_THAT(end_names(), SizeIs(6));
  EXPECT_THAT(end_names(), ::testing::Each("failed"));
}

TEST_F(RolloutEndTest, AnObservationThatCannotBeTokenizedFails) {
  live(0);
  task(0);
  const auto made = requests();
  complete(made[0]);
  observe(actions().front(), 0, false, "!");
  EXPECT_THAT(end_names(), ElementsAre("failed"));
}

/// Engines are lost or fail as often as attempts_max allows; `last` ends the first attempt and the
/// last one.
struct LostEngineTest : RolloutEndTest, ::testing::WithParamInterface<FinishReason> {};

TEST_P(LostEngineTest, MeansAnotherAttemptAndThenTheEnd) {
  live(0);
  task(0);
  auto request = requests().front();
  const auto first = request;
  for (uint32_t attempt = 1; attempt <= 3; ++attempt) {
    end_without_tokens(request, attempt == 2 ? FinishReason::kEngineLost : GetParam());
    const auto again = requests();
    ASSERT_THAT(again, SizeIs(1));
    EXPECT_EQ(again[0].attempt, attempt);
    EXPECT_EQ(again[0].seed, first.seed);
    EXPECT_EQ(again[0].session, first.session);
    EXPECT_NE(again[0].request, request.request);
    EXPECT_EQ(again[0].prompt_tokens, first.prompt_tokens);
    request = again[0];
  }
  end_without_tokens(request, GetParam());
  EXPECT_THAT(requests(), IsEmpty());
  EXPECT_THAT(end_names(), ElementsAre("failed"));
  EXPECT_EQ(*ends()[0].get_int("attempt"), 3);
}

INSTANTIATE_TEST_SUITE_P(Ends, LostEngineTest,
                         ::testing::Values(FinishReason::kEngineLost, FinishReason::kFailed),
                         [](const auto& end) { return std::string(to_string(end.param)); });

TEST_F(RolloutEndTest, AfterALostRouterEveryRequestIsSentAgain) {
  live(0);
  task(0);
  task(1);
  const auto made = requests();
  complete(made[0]);
  ASSERT_TRUE(rollout.peer({PeerEvent::Kind::kDown, kRouter, 1}).ok());
  ASSERT_TRUE(rollout.advance(Duration::milliseconds(1)).ok());
  EXPECT_THAT(requests(), IsEmpty()) << "a request to a router that is down is lost";
  ASSERT_TRUE(rollout.peer({PeerEvent::Kind::kUp, kRouter, 2}).ok());
  ASSERT_TRUE(rollout.advance(Duration::milliseconds(1)).ok());
  const auto again = requests();
  ASSERT_THAT(again, SizeIs(3));
  for (const auto& request : again) EXPECT_EQ(request.attempt, 1U);
  complete(made[1]);  // of the old router: not waited for any more
  EXPECT_EQ(rollout.counter("completions_unknown"), 1);
}

/// The first attempt is not lost: it was never made.
TEST_F(RolloutEndTest, AGroupThatOpensWhileTheRouterIsDownIsSentWhenItIsBack) {
  live(0);
  task(0);
  ASSERT_THAT(requests(), SizeIs(2));
  ASSERT_TRUE(rollout.peer({PeerEvent::Kind::kDown, kRouter, 1}).ok());
  task(1);
  ASSERT_TRUE(rollout.advance(Duration::milliseconds(1)).ok());
  EXPECT_THAT(requests(), IsEmpty());
  ASSERT_TRUE(rollout.peer({PeerEvent::Kind::kUp, kRouter, 2}).ok());
  ASSERT_TRUE(rollout.advance(Duration::milliseconds(1)).ok());
  std::multiset<uint32_t> attempts;
  for (const auto& request : requests()) attempts.insert(request.attempt);
  EXPECT_THAT(attempts, ::testing::ElementsAre(0, 0, 1, 1));
}

/// Nothing is cancelled that no router has: a drain would wait for its answer.
TEST_F(RolloutEndTest, ADrainWhileTheRouterIsDownWaitsForNothing) {
  live(0);
  task(0);
  ASSERT_THAT(requests(), SizeIs(2));
  ASSERT_TRUE(rollout.peer({PeerEvent::Kind::kDown, kRouter, 1}).ok());
  task(1);
  ASSERT_TRUE(rollout.advance(Duration::milliseconds(1)).ok());
  ASSERT_TRUE(rollout.drain().ok());
  EXPECT_TRUE(rollout.idle());
  EXPECT_THAT(end_names(), Each(std::string("cancelled")));
}

/// Between the death of the router and the work call that sends everything again.
TEST_F(RolloutEndTest, ARolloutThatEndedMeanwhileIsNotSentToTheNewRouter) {
  live(0);
  task(0);
  ASSERT_THAT(requests(), SizeIs(2));
  ASSERT_TRUE(rollout.peer({PeerEvent::Kind::kDown, kRouter, 1}).ok());
  live(2);  // version 0 cannot train any more
  EXPECT_THAT(end_names(), ElementsAre("stale", "stale"));
  ASSERT_TRUE(rollout.advance(Duration::milliseconds(1)).ok());
  EXPECT_THAT(requests(), IsEmpty());
  EXPECT_TRUE(rollout.idle());
}

/// A turn that reached max_tokens is truncated; environment and trainer are notified.
TEST_F(RolloutEndTest, ATurnThatRanIntoMaxTokensIsTruncated) {
  live(0);
  task(0);
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(2));
  complete(made[0], "xy\n", FinishReason::kStop);
  complete(made[1], "xy", FinishReason::kLength);
  const auto told = actions();
  ASSERT_THAT(told, SizeIs(2));
  EXPECT_FALSE(told[0].is_truncated);
  EXPECT_TRUE(told[1].is_truncated);
  for (const Action& action : told) observe(action, 1);
  const auto delivered = groups();
  ASSERT_THAT(delivered, SizeIs(1));
  EXPECT_FALSE(delivered[0].members[0].is_truncated);
  EXPECT_TRUE(delivered[0].members[1].is_truncated);
}

TEST_F(RolloutEndTest, AStragglerThatCannotTrainIsCancelledAndEndsStale) {
  live(0);
  task(0);
  const auto made = requests();
  complete(made[0]);
  live(1);  // one step of lead: version 0 may still train in batch 2
  EXPECT_THAT(ends(), IsEmpty());
  live(2);
  EXPECT_THAT(end_names(), ElementsAre("stale", "stale"));
  const auto cancels = rollout.take<Cancel>("cancel");
  ASSERT_THAT(cancels, SizeIs(1));
  EXPECT_THAT(cancels[0].requests, ElementsAre(made[1].request));
  EXPECT_EQ(rollout.counter("tokens_stale"), 3);
  EXPECT_FALSE(rollout.idle()) << "the cancelled request still owes its answer";
  end_without_tokens(made[1], FinishReason::kCancelled);
  EXPECT_TRUE(rollout.idle());
  EXPECT_THAT(groups(), IsEmpty());
  EXPECT_THAT(end_names(), SizeIs(2));
}

TEST_F(RolloutEndTest, TheTrainersAnswerMakesAGroupStaleBeforeTheVersionIsLive) {
  live(0);
  task(0);
  task(1);
  task(2);
  const auto made = requests();
  play({made[2], made[3]});
  play({made[4], made[5]});
  const auto delivered = groups();
  end(delivered[0], RolloutEnd::kTrained, 1);
  EXPECT_THAT(end_names(), SizeIs(2));
  end(delivered[1], RolloutEnd::kTrained, 2);
  EXPECT_THAT(end_names(),
              ElementsAre("trained", "trained", "trained", "trained", "stale", "stale"));
}

TEST_F(RolloutEndTest, ARolloutPastItsDeadlineFailsAndIsCancelled) {
  live(0);
  task(0);
  const auto made = requests();
  ASSERT_TRUE(rollout.advance(Duration::seconds(120) - Duration::nanoseconds(1)).ok());
  EXPECT_THAT(ends(), IsEmpty());
  ASSERT_TRUE(rollout.advance(Duration::nanoseconds(1)).ok());
  EXPECT_THAT(end_names(), ElementsAre("failed", "failed"));
  EXPECT_THAT(rollout.take<Cancel>("cancel").front().requests, SizeIs(2));
  EXPECT_THAT(groups(), SizeIs(1)) << "the trainer answers for the group";
  complete(made[0]);
  EXPECT_THAT(end_names(), SizeIs(2));
}

TEST_F(RolloutEndTest, AnEnvironmentPastItsDeadlineFailsTheRollout) {
  live(0);
  task(0);
  const auto made = requests();
  complete(made[0]);
  const auto late = actions().front();
  ASSERT_TRUE(rollout.advance(Duration::seconds(30)).ok());
  EXPECT_THAT(end_names(), ElementsAre("failed"));
  EXPECT_THAT(*ends()[0].get_string("reason"), HasSubstr("did not answer within 30s"));
  observe(late, 1);
  EXPECT_THAT(end_names(), SizeIs(1));
  EXPECT_EQ(rollout.counter("observations_unknown"), 0) << "it was expected to come late";
}

struct OneGroup : testing::RolloutStory {
  OneGroup() : RolloutStory({.model = "", .max_inflight = 2}) {}
};

TEST_F(OneGroup, AStuckEnvironmentCallKeepsItsSlotUntilItIsAnswered) {
  live(0);
  task(0);
  task(1);
  const auto made = requests();
  complete(made[0]);
  const auto stuck = actions().front();
  play({made[1]});
  ASSERT_TRUE(rollout.advance(Duration::seconds(30)).ok());
  EXPECT_THAT(groups(), SizeIs(1));
  ASSERT_TRUE(rollout.advance(Duration::seconds(30)).ok());
  EXPECT_THAT(requests(), IsEmpty()) << "its action still waits at the environment";
  observe(stuck, 0);
  EXPECT_THAT(requests(), SizeIs(2));
}

TEST_F(OneGroup, ACancelledRequestKeepsItsSlotUntilItIsAnswered) {
  live(0);
  task(0);
  task(1);
  const auto made = requests();
  live(2);
  EXPECT_THAT(end_names(), ElementsAre("stale", "stale"));
  EXPECT_THAT(requests(), IsEmpty());
  for (const auto& request : made) end_without_tokens(request, FinishReason::kCancelled);
  EXPECT_THAT(requests(), SizeIs(2));
}

TEST_F(RolloutEndTest, ADrainCancelsWhatIsInFlightAndWaitsForTheRest) {
  live(0);
  for (uint64_t i = 0; i < 6; ++i) task(i);
  const auto made = requests();
  play({made[0], made[1]});
  const auto delivered = groups();
  ASSERT_TRUE(rollout.drain().ok());
  EXPECT_THAT(end_names(), SizeIs(6));
  EXPECT_THAT(end_names(), ::testing::Each("cancelled"));
  EXPECT_THAT(rollout.take<Cancel>("cancel").front().requests, SizeIs(6));
  EXPECT_FALSE(rollout.idle());
  for (size_t i = 2; i < made.size(); ++i) end_without_tokens(made[i], FinishReason::kCancelled);
  EXPECT_FALSE(rollout.idle());
  end(delivered[0], RolloutEnd::kCancelled);
  EXPECT_TRUE(rollout.idle());
  EXPECT_THAT(requests(), IsEmpty());
  EXPECT_THAT(end_names(), SizeIs(8));
  task(9);
  EXPECT_THAT(requests(), IsEmpty());
}

struct ManyRollouts : testing::RolloutStory {
  ManyRollouts() : RolloutStory({.model = "", .max_inflight = 200}, big()) {}
  static Tenant big() { return testing::a_tenant(10, 20, 0); }
};

TEST_F(ManyRollouts, CancelsManyInSeveralMessages) {
  live(0);
  for (uint64_t i = 0; i < 20; ++i) task(i);
  ASSERT_THAT(requests(), SizeIs(200));
  ASSERT_TRUE(rollout.drain().ok());
  std::vector<size_t> sizes;
  for (const auto& cancel : rollout.take<Cancel>("cancel")) sizes.push_back(cancel.requests.size());
  EXPECT_THAT(sizes, ElementsAre(64, 64, 64, 8));
}

TEST_F(RolloutEndTest, AFileThatCannotBeWrittenIsReportedOnceAndEndsTheRun) {
  live(0);
  task(0);
  play(requests());
  rollout.fail_files("no space left on device");
  end(groups().front(), RolloutEnd::kTrained, 1);
  ASSERT_THAT(rollout.log(), SizeIs(1));
  EXPECT_THAT(rollout.log()[0], HasSubstr("no space left"));
  EXPECT_TRUE(rollout.is_finished(TenantSlot(0)));
}

}  // namespace
}  // namespace primerl
