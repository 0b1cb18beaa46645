// Which environment instance serves which trajectory, and what Rollout does when an instance dies.
#include "actors/rollout/environments.h"

#include "graph/catalog.h"
#include "graph/outside.h"
#include "tests/actors/rollout_story.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr InstanceId kFirst{50}, kSecond{51}, kThird{52};

TEST(Environments, ANewTrajectoryGoesWhereTheFewestAre) {
  const std::vector<InstanceId> targets = {kFirst, kSecond, kThird};
  Environments environments;
  EXPECT_EQ(environments.choose(targets), kFirst);
  environments.begin(kFirst);
  environments.begin(kSecond);
  EXPECT_EQ(environments.choose(targets), kThird);
  environments.begin(kThird);
  environments.end(kSecond);
  EXPECT_EQ(environments.choose(targets), kSecond);
  EXPECT_TRUE(environments.choose({}).is_none());
}

TEST(Environments, TheOneThatGivesTasksJudgesOnlyWhenItIsAlone) {
  Environments environments;
  environments.gives_tasks(kFirst);
  EXPECT_EQ(environments.choose(std::vector{kFirst, kSecond}), kSecond);
  EXPECT_EQ(environments.choose(std::vector{kFirst}), kFirst);
}

TEST(Environments, EndedTrajectoriesAreReportedOnceAndTheOldestAreDropped) {
  Environments environments;
  for (uint64_t i = 0; i <= kEndedTrajectoriesMax; ++i) environments.report_ended(kFirst, i);
  const auto told = environments.take_ended(kFirst);
  ASSERT_THAT(told, SizeIs(kEndedTrajectoriesMax));
  EXPECT_EQ(told.front(), 1U);
  EXPECT_THAT(environments.take_ended(kFirst), IsEmpty());
  EXPECT_THAT(environments.take_ended(kSecond), IsEmpty());
}

struct ManyEnvironments : testing::RolloutStory {
  ManyEnvironments() { rollout.set_targets("action", {kFirst, kSecond, kThird}); }
  /// The targets of the actions that were sent since the last call.
  std::vector<InstanceId> sent_to() {
    std::vector<InstanceId> targets;
    for (const auto& emission : rollout.emissions("action"))
      targets.push_back(emission.options.target);
    return targets;
  }
};

TEST_F(ManyEnvironments, ATrajectoryKeepsItsEnvironmentAndSendsOnlyNewTurns) {
  live(0);
  task(0);
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(2));
  for (const auto& request : made) complete(request, "x\n");
  EXPECT_THAT(sent_to(), ElementsAre(kFirst, kSecond));
  const auto first = actions();
  for (const auto& action : first) observe(action, 0, false, "more");
  for (const auto& request : requests()) complete(request, "y\n");
  EXPECT_THAT(sent_to(), ElementsAre(kFirst, kSecond));
  for (const auto& action : actions()) {
    EXPECT_EQ(action.first_turn, 1);
    EXPECT_EQ(action.turn, 1);
    EXPECT_THAT(action.texts, ElementsAre("y"));
  }
}

TEST_F(ManyEnvironments, AnEnvironmentWithoutTheHistoryGetsItOnce) {
  live(0);
  task(0);
  complete(requests().front(), "x\n");
  observe(actions().front(), 0, false, "more");
  complete(requests().front(), "y\n");
  Observation unknown;
  unknown.trajectory = 0;
  unknown.turn = 1;
  unknown.needs_history = true;
  EXPECT_THAT(actions(), SizeIs(1));
  ASSERT_TRUE(rollout.give("observation", unknown).ok());
  const auto again = actions();
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].first_turn, 0);
  EXPECT_THAT(again[0].texts, ElementsAre("x", "y"));
  ASSERT_TRUE(rollout.give("observation", unknown).ok());
  EXPECT_THAT(actions(), IsEmpty());
  ASSERT_THAT(ends(), SizeIs(1));
  EXPECT_THAT(ends()[0].dump(), HasSubstr("asks for turns that it already has"));
}

TEST_F(ManyEnvironments, TrajectoriesOfADeadEnvironmentMoveWithTheirWholeHistory) {
  live(0);
  task(0);
  for (const auto& request : requests()) complete(request, "x\n");
  const auto first = actions();
  observe(first[0], 0, false, "more");
  rollout.set_targets("action", {kSecond, kThird});
  ASSERT_TRUE(rollout.peer({PeerEvent::Kind::kDown, kFirst, 1}).ok());
  EXPECT_THAT(actions(), IsEmpty()) << "member 0 generates";
  complete(requests().front(), "y\n");
  EXPECT_THAT(sent_to(), ElementsAre(kThird));
  const auto moved = actions();
  ASSERT_THAT(moved, SizeIs(1));
  EXPECT_EQ(moved[0].first_turn, 0);
  EXPECT_THAT(moved[0].texts, ElementsAre("x", "y"));
  rollout.set_targets("action", {kThird});
  ASSERT_TRUE(rollout.peer({PeerEvent::Kind::kDown, kSecond, 1}).ok());
  ASSERT_TRUE(rollout.advance(Duration()).ok());
  const auto again = actions();
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].trajectory, first[1].trajectory);
  observe(again[0], 1);
  observe(moved[0], 1);
  EXPECT_THAT(groups(), SizeIs(1));
}

TEST_F(ManyEnvironments, AnActionThatIsSentAgainHasTheTimeOfACallForEachTurn) {
  live(0);
  task(0);
  for (const auto& request : requests()) complete(request, "x\n");
  const auto first = actions();
  observe(first[1], 1);
  observe(first[0], 0, false, "more");
  complete(requests().front(), "y\n");
  EXPECT_THAT(actions(), SizeIs(1));
  ASSERT_TRUE(rollout.advance(Duration::seconds(29)).ok());
  rollout.set_targets("action", {kSecond, kThird});
  ASSERT_TRUE(rollout.peer({PeerEvent::Kind::kDown, kFirst, 1}).ok());
  ASSERT_TRUE(rollout.advance(Duration()).ok());
  const auto again = actions();
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_THAT(again[0].texts, ElementsAre("x", "y"));
  ASSERT_TRUE(rollout.advance(Duration::seconds(60) - Duration::nanoseconds(1)).ok());
  EXPECT_THAT(ends(), IsEmpty()) << "it died a second before its deadline";
  ASSERT_TRUE(rollout.advance(Duration::nanoseconds(1)).ok());
  EXPECT_THAT(end_names(), ElementsAre("failed"));
}

struct FullRollout : testing::RolloutStory {
  FullRollout() : RolloutStory(of_five()) {
    rollout.set_targets("action", {kFirst, kSecond, kThird});
  }
  static RolloutOptions of_five() {
    RolloutOptions options;
    options.max_inflight = 5;
    return options;
  }
};

// The in-flight slots are free at once, not only with the next message. That message may send
// requests itself, and one step opens at most one group.
TEST_F(FullRollout, TheDeathOfAStuckEnvironmentFreesSlotsForAGroup) {
  live(0);
  task(0);
  task(1);
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(4));
  complete(made[0], "x\n");
  complete(made[1], "x\n");
  ASSERT_THAT(actions(), SizeIs(2));
  ASSERT_TRUE(rollout.advance(Duration::seconds(31)).ok());
  EXPECT_THAT(end_names(), ElementsAre("failed", "failed")) << "their environments hang";
  task(2);
  EXPECT_THAT(requests(), IsEmpty()) << "the hanging actions count as in flight";
  EXPECT_TRUE(rollout.is_paused("task"));
  rollout.set_targets("action", {kThird});
  ASSERT_TRUE(rollout.peer({PeerEvent::Kind::kDown, kFirst, 1}).ok());
  ASSERT_TRUE(rollout.peer({PeerEvent::Kind::kDown, kSecond, 1}).ok());
  EXPECT_THAT(requests(), SizeIs(2));
  EXPECT_FALSE(rollout.is_paused("task"));
}

// Sending requests again also frees slots, if some rollouts have used all attempts. The runner
// checks the messages of each step.
TEST_F(FullRollout, AStepOpensAtMostOneGroup) {
  live(0);
  task(0);
  task(1);
  auto made = requests();
  ASSERT_THAT(made, SizeIs(4));
  for (int attempt = 0; attempt < 3; ++attempt) {
    end_without_tokens(made[0], FinishReason::kEngineLost);
    made[0] = requests()[0];
  }
  task(2);
  EXPECT_THAT(requests(), IsEmpty());
  ASSERT_TRUE(rollout.peer({PeerEvent::Kind::kDown, kRouter, 1}).ok());
  ASSERT_TRUE(rollout.peer({PeerEvent::Kind::kUp, kRouter, 2}).ok());
  size_t num_asked = 0;
  for (int step = 0; step < 8; ++step) {
    num_asked += requests().size();
    ASSERT_TRUE(rollout.advance(Duration()).ok());
  }
  EXPECT_EQ(end_names(), std::vector<std::string>{"failed"}) << "its fourth engine";
  EXPECT_EQ(num_asked, 5U) << "three again, and the group that has room now";
}

TEST_F(ManyEnvironments, WithoutAnEnvironmentTheActionWaitsUntilOneIsBack) {
  live(0);
  task(0);
  rollout.set_targets("action", {});
  for (const auto& request : requests()) complete(request, "x\n");
  EXPECT_THAT(actions(), IsEmpty());
  rollout.set_targets("action", {kFirst});
  ASSERT_TRUE(rollout.peer({PeerEvent::Kind::kUp, kFirst, 2}).ok());
  ASSERT_TRUE(rollout.advance(Duration()).ok());
  EXPECT_THAT(actions(), SizeIs(2));
}

TEST_F(ManyEnvironments, ARolloutThatEndsEarlyIsReportedWithTheNextAction) {
  live(0);
  task(0);
  const auto made = requests();
  complete(made[0], "x\n");
  const auto acted = actions();
  observe(acted[0], 0, false, "more");
  end_without_tokens(requests().front(), FinishReason::kRefused);
  complete(made[1], "x\n");
  const auto next = actions();
  ASSERT_THAT(next, SizeIs(1));
  EXPECT_THAT(next[0].ended, ElementsAre(acted[0].trajectory));
}

TEST_F(ManyEnvironments, ANewTrajectoryDoesNotWaitForAnUnansweredAction) {
  live(0);
  task(0);
  for (const auto& request : requests()) complete(request, "x\n");
  EXPECT_THAT(sent_to(), ElementsAre(kFirst, kSecond));
  const auto stuck = actions();
  ASSERT_TRUE(rollout.advance(Duration::seconds(3600)).ok());
  EXPECT_THAT(groups(), SizeIs(1));
  task(1);
  const auto made = requests();
  complete(made[0], "x\n");
  EXPECT_THAT(sent_to(), ElementsAre(kThird));
  observe(stuck[1], 1);  // too late for its rollout, but the instance is free now
  EXPECT_EQ(actions().size(), 1U);
  complete(made[1], "x\n");
  EXPECT_THAT(sent_to(), ElementsAre(kSecond));
}

/// An environment outside, whose answers have a reward of this process.
Tenant scored_outside() {
  static const EnvironmentContract contract = [] {
    EnvironmentContract outside;
    outside.name = "process";
    outside.outside = [](const void*) { return OutsidePool(); };
    return outside;
  }();
  Tenant tenant = testing::a_tenant();
  tenant.environment = {"process", nullptr, &contract};
  tenant.rewards = {{.name = "length", .options = nullptr, .label = "length"}};
  return tenant;
}

struct ScoredOutside : testing::RolloutStory {
  ScoredOutside() : RolloutStory({}, scored_outside()) {}
};

TEST_F(ScoredOutside, TheFirstActionOfATrajectoryTellsThePromptForTheRewards) {
  live(0);
  task(0, "2+3?");
  complete(requests().front(), "x\n");
  const auto first = actions();
  EXPECT_EQ(first.at(0).prompt, "2+3?");
  observe(first[0], 0, false, "more");
  complete(requests().front(), "y\n");
  const auto second = actions();
  EXPECT_EQ(second.at(0).prompt, "") << "the environment has it";
  Observation unknown;
  unknown.trajectory = second[0].trajectory;
  unknown.turn = 1;
  unknown.needs_history = true;
  ASSERT_TRUE(rollout.give("observation", unknown).ok());
  EXPECT_EQ(actions().at(0).prompt, "2+3?");
}

TEST_F(ManyEnvironments, ThatMakeTheirTasksAgainAreToldNoPrompt) {
  live(0);
  task(0, "2+3?");
  complete(requests().front(), "x\n");
  EXPECT_EQ(actions().at(0).prompt, "");
}

TEST_F(ManyEnvironments, AnAnswerThatWasTooLongEndsTheRolloutAsTruncated) {
  live(0);
  task(0);
  for (const auto& request : requests()) complete(request, "x\n");
  for (const auto& action : actions()) {
    Observation observation;
    observation.trajectory = action.trajectory;
    observation.turn = action.turn;
    observation.is_too_long = true;
    ASSERT_TRUE(rollout.give("observation", observation).ok());
  }
  const auto delivered = groups();
  ASSERT_THAT(delivered, SizeIs(1));
  for (const auto& member : delivered[0].members) {
    EXPECT_TRUE(member.is_truncated);
    EXPECT_FALSE(member.is_failed);
  }
}

}  // namespace
}  // namespace primerl
