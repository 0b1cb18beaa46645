// Rollouts that measure the policy: when rows open, how they end, and what ends the run.
#include <algorithm>

#include "tests/actors/rollout_story.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Tenant a_measured_tenant() {
  Tenant tenant = testing::a_tenant();  // groups of two, two groups a batch
  tenant.environment.name = "copy";
  tenant.eval = {.interval = 2, .samples = 3, .rows = 2, .temperature = 0, .max_tokens = 5};
  tenant.max_steps = 4;
  return tenant;
}

struct MeasuredRollout : testing::RolloutStory {
  explicit MeasuredRollout(RolloutOptions options = {.model = "", .max_inflight = 8},
                           Tenant tenant = a_measured_tenant())
      : RolloutStory(std::move(options), std::move(tenant)) {}

  /// The environment's answer to an action that asks for a task.
  void give_task(const Action& asked, const std::string& prompt = "xy") {
    EXPECT_EQ(asked.turn, -1);
    EXPECT_THAT(asked.texts, IsEmpty());
    observe(asked, 0, false, prompt);
  }
  void run_timers() { ASSERT_TRUE(rollout.advance(Duration()).ok()); }
  /// Plays both rows; rollout i of a row gets reward i.
  void play_rows() {
    for (int num_played = 0; num_played < 2;) {
      const auto asked = actions();
      ASSERT_FALSE(asked.empty());
      for (const Action& each : asked) {
        give_task(each);
        play(requests());
        ++num_played;
      }
      run_timers();
    }
  }
  std::vector<Json> evaluations() {
    std::vector<Json> lines;
    for (const auto& line : rollout.lines("evaluations.jsonl"))
      lines.push_back(*parse_json(line, "evaluations.jsonl"));
    return lines;
  }
  static constexpr TenantSlot kTenant{0};
};

TEST_F(MeasuredRollout, OpensOneRowAfterTheOtherBeforeTrainingGroups) {
  task(0);
  live(0);
  const auto first = actions();
  ASSERT_THAT(first, SizeIs(1));
  EXPECT_EQ(first[0].ordinal, evaluation_ordinal(PolicyVersion(0), 0, 2));
  EXPECT_THAT(requests(), IsEmpty()) << "the training group waits";
  run_timers();
  const auto second = actions();
  ASSERT_THAT(second, SizeIs(1));
  EXPECT_EQ(second[0].ordinal, evaluation_ordinal(PolicyVersion(0), 1, 2));
  EXPECT_THAT(requests(), SizeIs(2)) << "all rows are open, so the training group opens";
  EXPECT_EQ(rollout.counter("evaluation_rows_opened"), 2);
}

TEST_F(MeasuredRollout, ItsRolloutsStartTogetherWithTheSamplingOfTheEvaluation) {
  live(0);
  give_task(actions().front(), "abc");
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(3));
  for (const auto& request : made) {
    EXPECT_THAT(request.prompt_tokens, ElementsAre('a', 'b', 'c'));
    EXPECT_EQ(request.sampling.temperature, 0);
    EXPECT_EQ(request.sampling.max_tokens, 5);
    EXPECT_EQ(request.salt, "main:0");
  }
  EXPECT_NE(made[0].seed, made[1].seed);
}

TEST_F(MeasuredRollout, EveryVersionIsMeasuredWithTheSameRandomNumbers) {
  live(0);
  play_rows();
  live(2);
  play_rows();
  ASSERT_THAT(requests_seen, SizeIs(12));
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(requests_seen[i].seed, requests_seen[i + 6].seed);
    EXPECT_NE(requests_seen[i].request, requests_seen[i + 6].request);
  }
}

TEST_F(MeasuredRollout, EndsAsEvaluatedAndTheTrainerNeverGetsIt) {
  live(0);
  play_rows();
  EXPECT_THAT(groups(), IsEmpty());
  EXPECT_THAT(end_names(), ::testing::Each("evaluated"));
  EXPECT_THAT(ends(), SizeIs(6));
  EXPECT_EQ(ends()[1].find("staleness")->as_int(), 0);
  EXPECT_TRUE(ends()[1].find("evaluation")->as_bool());
  const auto lines = evaluations();
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(lines[0].find("version")->as_int(), 0);
  EXPECT_EQ(*lines[0].get_double("reward"), 1.0);
  EXPECT_EQ(lines[0].find("rollouts")->as_int(), 6);
  EXPECT_EQ(*lines[0].find("pass")->get_double("3"), 1.0);
  ASSERT_THAT(rollout.metrics(), SizeIs(1));
  EXPECT_EQ(rollout.metrics()[0].at("eval/copy/avg@3"), 1.0);
  EXPECT_FALSE(rollout.is_finished(kTenant));
}

TEST_F(MeasuredRollout, CountsAsInFlightAtTheBoundAndOnePastIt) {
  // 8 may be in flight: two rows of 3 and one training group of 2, and then nothing more.
  live(0);
  run_timers();
  task(0);
  task(1);
  EXPECT_THAT(actions(), SizeIs(2));
  EXPECT_THAT(requests(), SizeIs(2));
  EXPECT_EQ(rollout.counter("groups_opened"), 1);
}

struct NarrowMeasuredRollout : MeasuredRollout {
  NarrowMeasuredRollout() : MeasuredRollout({.model = "", .max_inflight = 5}) {}
};

TEST_F(NarrowMeasuredRollout, ARowWaitsUntilAllItsRolloutsFit) {
  live(0);
  run_timers();
  const auto asked = actions();
  EXPECT_THAT(asked, SizeIs(1)) << "3 of 5 are in flight";
  give_task(asked.front());
  play(requests());
  run_timers();
  EXPECT_THAT(actions(), SizeIs(1));
}

TEST_F(MeasuredRollout, NeverBecomesStale) {
  live(0);
  const auto asked = actions();
  for (int64_t version : {1, 2, 3}) live(version);
  EXPECT_THAT(end_names(), IsEmpty());
  give_task(asked.front());
  EXPECT_THAT(requests(), ::testing::Not(IsEmpty()));
}

TEST_F(MeasuredRollout, ChangesNothingInTheAccountsOfTheGate) {
  live(0);
  play_rows();
  // Two groups a batch and one step of lead: four may be open.
  for (uint64_t i = 0; i < 6; ++i) task(i);
  EXPECT_EQ(rollout.counter("groups_opened"), 4);
}

TEST_F(MeasuredRollout, ARowWithoutATaskFailsAllItsRollouts) {
  live(0);
  run_timers();
  const auto asked = actions();
  ASSERT_THAT(asked, SizeIs(2));
  observe(asked[0], 0, true, "", "no row today");
  EXPECT_THAT(end_names(), ElementsAre("failed", "failed", "failed"));
  EXPECT_THAT(ends()[2].find("reason")->as_string(), HasSubstr("no row today"));
  give_task(asked[1]);
  play(requests());
  ASSERT_THAT(evaluations(), SizeIs(1));
  EXPECT_EQ(evaluations()[0].find("failed")->as_int(), 3);
  EXPECT_EQ(evaluations()[0].find("complete_rows")->as_int(), 1);
}

TEST_F(MeasuredRollout, AnEmptyPromptFailsTheRow) {
  live(0);
  give_task(actions().front(), "");
  EXPECT_THAT(end_names(), ElementsAre("failed", "failed", "failed"));
}

TEST_F(MeasuredRollout, AnEnvironmentThatDoesNotAnswerFailsTheRow) {
  live(0);
  ASSERT_TRUE(rollout.advance(Duration::seconds(31)).ok());
  EXPECT_THAT(ends(), SizeIs(6));
  EXPECT_THAT(end_names(), ::testing::Each("failed"));
  ASSERT_THAT(evaluations(), SizeIs(1));
  EXPECT_TRUE(evaluations()[0].find("reward")->is_null());
}

TEST_F(MeasuredRollout, ARowIsAskedForAgainIfItsEnvironmentWasLost) {
  live(0);
  const auto asked = actions();
  ASSERT_TRUE(rollout.peer({PeerEvent::Kind::kDown, kEnvironment}).ok());
  run_timers();
  const auto again = actions();
  const auto same = std::ranges::find(again, asked.front().ordinal, &Action::ordinal);
  ASSERT_NE(same, again.end());
  give_task(*same);
  EXPECT_THAT(requests(), SizeIs(3));
}

TEST_F(MeasuredRollout, ADrainCancelsItAndWritesNoResult) {
  live(0);
  give_task(actions().front());
  ASSERT_TRUE(rollout.drain().ok());
  EXPECT_THAT(end_names(), ::testing::Each("cancelled"));
  EXPECT_THAT(evaluations(), IsEmpty());
  EXPECT_THAT(rollout.take<Cancel>("cancel"), SizeIs(1));
}

TEST_F(MeasuredRollout, TheRunEndsAfterTheEvaluationOfTheLastVersion) {
  live(0);
  play_rows();
  live(4);  // max_steps
  EXPECT_FALSE(rollout.is_finished(kTenant));
  play_rows();
  EXPECT_TRUE(rollout.is_finished(kTenant));
  ASSERT_THAT(evaluations(), SizeIs(2));
  EXPECT_EQ(evaluations()[1].find("version")->as_int(), 4);
}

/// Its groups were dropped, and the trainer may have ended already.
TEST_F(MeasuredRollout, MoreStepsThatAreSetDuringTheLastEvaluationComeTooLate) {
  live(0);
  play_rows();
  live(4);  // max_steps
  Tenant tenant = a_measured_tenant();
  tenant.max_steps = 8;
  rollout.change_tenants({tenant});
  play_rows();
  EXPECT_TRUE(rollout.is_finished(kTenant));
}

TEST_F(MeasuredRollout, ALastVersionThatIsNoMultipleIsMeasuredToo) {
  Tenant tenant = a_measured_tenant();
  tenant.max_steps = 3;
  rollout.set_tenants({tenant});
  live(0);
  play_rows();
  live(2);
  play_rows();
  live(3);
  run_timers();
  play_rows();
  EXPECT_TRUE(rollout.is_finished(kTenant));
  EXPECT_EQ(evaluations().back().find("version")->as_int(), 3);
}

TEST_F(MeasuredRollout, AfterTheLastStepNoTrainingGroupOpens) {
  live(0);
  play_rows();
  live(4);
  task(0);
  EXPECT_EQ(rollout.counter("groups_opened"), 0);
}

TEST_F(MeasuredRollout, ALastVersionThatDoesNotBecomeLiveEndsTheRunWithAWarning) {
  Tenant tenant = a_measured_tenant();
  tenant.max_steps = 1;
  rollout.set_tenants({tenant});
  live(0);
  play_rows();
  for (uint64_t i = 0; i < 2; ++i) {
    task(i);
    play(requests());
  }
  for (const auto& group : groups()) end(group, RolloutEnd::kTrained, 1);
  EXPECT_FALSE(rollout.is_finished(kTenant));
  ASSERT_TRUE(rollout.advance(Duration::seconds(119)).ok());
  EXPECT_FALSE(rollout.is_finished(kTenant));
  ASSERT_TRUE(rollout.advance(Duration::seconds(2)).ok());
  EXPECT_TRUE(rollout.is_finished(kTenant));
}

TEST_F(MeasuredRollout, WithoutAtEndTheTrainerEndsTheRun) {
  Tenant tenant = a_measured_tenant();
  tenant.eval.at_end = false;
  rollout.set_tenants({tenant});
  live(0);
  play_rows();
  live(4);
  play_rows();
  EXPECT_FALSE(rollout.is_finished(kTenant));
}

struct OnlyMeasuredRollout : MeasuredRollout {
  OnlyMeasuredRollout()
      : MeasuredRollout({.model = "", .evaluates_only = true}, without_interval()) {}
  static Tenant without_interval() {
    Tenant tenant = a_measured_tenant();
    tenant.eval.interval = 0;
    return tenant;
  }
};

TEST_F(OnlyMeasuredRollout, PlaysOneEvaluationWithoutAVersionAndEndsTheRun) {
  task(0);
  play_rows();
  EXPECT_TRUE(rollout.is_finished(kTenant));
  EXPECT_EQ(rollout.counter("groups_opened"), 0);
  ASSERT_THAT(evaluations(), SizeIs(1));
  EXPECT_EQ(evaluations()[0].find("version")->as_int(), -1);
  for (const auto& request : requests_seen) EXPECT_TRUE(request.version.is_none());
}

Tenant a_tenant_with_epochs() {
  Tenant tenant = testing::a_tenant();
  tenant.tasks_max = 5;  // two batches of two groups, and one group
  return tenant;
}

struct RolloutWithEpochs : testing::RolloutStory {
  RolloutWithEpochs() : RolloutStory({}, a_tenant_with_epochs()) {}
  static constexpr TenantSlot kTenant{0};
};

TEST_F(RolloutWithEpochs, EndsTheRunWhenTheGroupsThatAreLeftDoNotFillABatch) {
  live(0);
  for (uint64_t i = 0; i < 3; ++i) {
    task(i);
    play(requests());
  }
  auto made = groups();
  ASSERT_THAT(made, SizeIs(3));
  end(made[0], RolloutEnd::kTrained, 1);
  end(made[1], RolloutEnd::kTrained, 1);
  live(1);
  for (uint64_t i = 3; i < 5; ++i) {
    task(i);
    play(requests());
  }
  task(5, "");  // the end of all tasks
  EXPECT_FALSE(rollout.is_finished(kTenant)) << "three groups are left: one more batch";
  end(made[2], RolloutEnd::kFiltered);
  EXPECT_FALSE(rollout.is_finished(kTenant)) << "two groups are left: one more batch";
  end(groups().front(), RolloutEnd::kFiltered);
  EXPECT_TRUE(rollout.is_finished(kTenant)) << "one group is left";
}

TEST_F(RolloutWithEpochs, TheEndOfAllTasksOpensNoGroup) {
  live(0);
  task(5, "");
  EXPECT_THAT(requests(), IsEmpty());
  EXPECT_TRUE(rollout.is_finished(kTenant)) << "a resumed run may have nothing left";
}

TEST_F(RolloutWithEpochs, WaitsForTheFirstVersion) {
  task(5, "");
  EXPECT_FALSE(rollout.is_finished(kTenant));
  live(0);
  EXPECT_TRUE(rollout.is_finished(kTenant));
}

}  // namespace
}  // namespace primerl
