#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/actors/trainer_story.h"

namespace primerl {
namespace {

using testing::a_group;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::TrainerStory;

TEST_F(TrainerStory, PublishesTheVersionItStartsFromBeforeAnythingElse) {
  start();
  EXPECT_EQ(weights->newest({}), PolicyVersion(0));
  const auto ready = trainer.sent<WeightsReady>("weights");
  ASSERT_THAT(ready, SizeIs(1));
  EXPECT_EQ(ready[0].version, PolicyVersion(0));
  EXPECT_FALSE(ready[0].is_last);
}

TEST_F(TrainerStory, GroupsWithoutTwoSurvivorsFail) {
  start();
  auto group = a_group(0, 0, {0, 1, 0.5});
  group.members[0].is_failed = group.members[1].is_failed = true;
  group.members[1].fault = "the environment: it broke";
  give(group);
  give(a_group(1, 0, {NAN, 1}));
  const auto ends = ended();
  ASSERT_THAT(ends, SizeIs(2));
  EXPECT_EQ(ends[0].end, RolloutEnd::kFailed);
  EXPECT_THAT(ends[0].reason, HasSubstr("1 of 3 members survived"));
  EXPECT_THAT(ends[0].reason, HasSubstr("it broke"));
  EXPECT_THAT(ends[1].reason, HasSubstr("nan"));
}

TEST_F(TrainerStory, RefusesAGroupThatCameTwiceAndTrainsOnTheFirst) {
  start();
  give(a_group(0, 0, {0, 1}));
  const Status again = trainer.give("group", a_group(0, 0, {0, 1}), from);
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.error().text(), HasSubstr("group 0 came twice"));
  give(a_group(1, 0, {0, 1}));
  work();
  EXPECT_THAT(learner.batches, SizeIs(1));
  EXPECT_THAT(ended(), SizeIs(2));
}

struct TruncatedTrainer : TrainerStory {
  TruncatedTrainer() : TrainerStory({}, tenant()) {}
  static Tenant tenant() {
    Tenant tenant = testing::a_tenant();
    tenant.sampling.top_k = 3;
    return tenant;
  }
};

TEST_F(TruncatedTrainer, AMemberWithoutItsKeptSetsFailsAloneAndTheLearnerGetsThoseOfTheOthers) {
  start();
  const Blob kept(std::vector<std::byte>(3));
  for (uint64_t ordinal = 0; ordinal < 2; ++ordinal) {
    auto group = a_group(ordinal, 0, {0, 1, 0.5});
    group.members[0].kept = group.members[1].kept = kept;
    give(group);
  }
  work();
  ASSERT_THAT(learner.batches, SizeIs(1));
  ASSERT_THAT(learner.batches[0].samples, SizeIs(4));
  for (const auto& sample : learner.batches[0].samples) EXPECT_EQ(sample.kept, kept);
  auto alone = a_group(3, 1, {0, 1});
  alone.members[0].kept = kept;
  give(alone);
  EXPECT_THAT(ended().back().reason, HasSubstr("its kept sets are missing"));
}

/// The learner divides its logits by the temperature with which the tokens were sampled.
TEST(SamplingTemperature, ReachesTheLearnerWithEverySample) {
  // Greedy sampling reports log-probabilities at temperature 1.
  for (const auto& [sampled, learnt] : {std::pair(0.7, 0.7F), {1.5, 1.5F}, {0.0, 1.0F}}) {
    struct Story : TrainerStory {
      explicit Story(Tenant tenant) : TrainerStory({}, std::move(tenant)) {}
      void TestBody() override {}
    };
    Tenant tenant = testing::a_tenant();
    tenant.sampling.temperature = sampled;
    Story story(tenant);
    story.start();
    story.batch(0, 0);
    ASSERT_THAT(story.learner.batches, SizeIs(1));
    ASSERT_THAT(story.learner.batches[0].samples, SizeIs(4));
    for (const auto& sample : story.learner.batches[0].samples)
      EXPECT_EQ(sample.temperature, learnt);
  }
}

TEST_F(TrainerStory, AMemberWithKeptSetsThatWereNotRequestedFails) {
  start();
  auto group = a_group(0, 0, {0, 1});
  group.members[0].kept = Blob(std::vector<std::byte>(3));
  give(group);
  EXPECT_THAT(ended().at(0).reason, HasSubstr("it has kept sets that were not requested"));
}

TEST_F(TrainerStory, ATwoSurvivorGroupTrainsAndCountsAsOne) {
  start();
  auto group = a_group(0, 0, {0, 1, 0.5});
  group.members[2].is_failed = true;
  give(group);
  give(a_group(1, 0, {0, 1}));
  work();
  ASSERT_THAT(learner.batches, SizeIs(1));
  EXPECT_THAT(learner.batches[0].samples, SizeIs(4));
}

TEST_F(TrainerStory, EqualRewardsAreFilteredUnlessTheTenantWantsThem) {
  start();
  give(a_group(0, 0, {0.5, 0.5}));
  EXPECT_EQ(ended()[0].end, RolloutEnd::kFiltered);
  Tenant tenant = testing::a_tenant();
  tenant.filters.zero_advantage = false;
  NodeRunner<Trainer> wanting;
  wanting.set_tenants({tenant});
  wanting.use("learner", learner);
  wanting.use("weights", *weights);
  ASSERT_TRUE(wanting.give("group", a_group(0, 0, {0.5, 0.5}), from).ok());
  EXPECT_THAT(wanting.sent<GroupEnded>("ended"), IsEmpty());
}

TEST_F(TrainerStory, ABatchIsTheOldestGroupsWithTheirAdvantages) {
  start();
  give(a_group(5, 0, {0, 1}));
  EXPECT_FALSE(*trainer.run_work()) << "one group is no batch";
  give(a_group(2, 0, {1, 0}));
  give(a_group(3, 0, {0, 1}));
  work();
  ASSERT_THAT(learner.batches, SizeIs(1));
  const auto& samples = learner.batches[0].samples;
  ASSERT_THAT(samples, SizeIs(4));
  EXPECT_THAT(samples[0].advantages, ElementsAre(0.5, 0.5, 0.5, 0.5, 0.5));
  EXPECT_THAT(samples[0].loss_mask, ElementsAre(0, 0, 1, 1, 1));
  const auto ends = ended();
  ASSERT_THAT(ends, SizeIs(2));
  EXPECT_EQ(ends[0].ordinal, 2U);
  EXPECT_EQ(ends[1].ordinal, 3U);
  EXPECT_EQ(ends[0].end, RolloutEnd::kTrained);
  EXPECT_EQ(ends[0].step, 1);
}

TEST_F(TrainerStory, EveryEndAnswersTheDeliveryOfItsGroup) {
  start();
  batch(0, 0);
  std::vector<StepRef> causes;
  for (const auto& emission : trainer.emissions("ended")) {
    EXPECT_EQ(emission.options.tenant, TenantSlot(0));
    EXPECT_EQ(emission.options.origin, InstanceId(3));
    causes.push_back(emission.options.cause);
  }
  ASSERT_THAT(causes, SizeIs(2));
  EXPECT_NE(causes[0], causes[1]);
}

TEST_F(TrainerStory, AStepMakesAVersionAndPublishesIt) {
  start();
  batch(0, 0);
  EXPECT_EQ(weights->newest({}), PolicyVersion(1));
  EXPECT_EQ(trainer.sent<WeightsReady>("weights").back().version, PolicyVersion(1));
}

TEST_F(TrainerStory, AGroupOneStepTooOldIsStaleOnArrival) {
  start();
  batch(0, 0);
  batch(2, 1);
  (void)ended();
  give(a_group(8, 1, {0, 1}));  // version 2 is made: batch 3 accepts version 1 and newer
  EXPECT_THAT(ended(), IsEmpty());
  give(a_group(9, 0, {0, 1}));
  const auto ends = ended();
  ASSERT_THAT(ends, SizeIs(1));
  EXPECT_EQ(ends[0].end, RolloutEnd::kStale);
  EXPECT_THAT(ends[0].reason, HasSubstr("2 steps off policy, 1 are allowed"));
  EXPECT_EQ(trainer.counter("tokens_stale"), 6);
}

TEST_F(TrainerStory, AGroupThatGrowsStaleWhileItWaitsEndsWithTheStep) {
  start();
  batch(0, 0);
  give(a_group(8, 0, {0, 1}));
  give(a_group(2, 0, {0, 1}));
  give(a_group(3, 0, {0, 1}));
  (void)ended();
  work();
  const auto ends = ended();
  ASSERT_THAT(ends, SizeIs(3));
  EXPECT_EQ(ends[2].ordinal, 8U);
  EXPECT_EQ(ends[2].end, RolloutEnd::kStale);
}

struct OnPolicy : TrainerStory {
  OnPolicy() : TrainerStory({}, testing::a_tenant(2, 2, 0)) {}
};

TEST_F(OnPolicy, TakesOnlyGroupsOfTheVersionItImproves) {
  start();
  batch(0, 0);
  (void)ended();
  give(a_group(5, 0, {0, 1}));
  EXPECT_EQ(ended()[0].end, RolloutEnd::kStale);
  give(a_group(6, 1, {0, 1}));
  EXPECT_THAT(ended(), IsEmpty());
}

struct Patient : TrainerStory {
  Patient() : TrainerStory({}, patient()) {}
  static Tenant patient() {
    Tenant tenant = testing::a_tenant();
    tenant.straggler_wait_ms = 100;
    return tenant;
  }
};

TEST_F(Patient, WaitsForAnOlderGroupAsLongAsItMay) {
  start();
  give(a_group(1, 0, {0, 1}));
  give(a_group(2, 0, {0, 1}));
  EXPECT_FALSE(*trainer.run_work());
  ASSERT_TRUE(trainer.advance(Duration::milliseconds(99)).ok());
  EXPECT_FALSE(*trainer.run_work());
  ASSERT_TRUE(trainer.advance(Duration::milliseconds(1)).ok());
  EXPECT_TRUE(*trainer.run_work());
  EXPECT_THAT(learner.batches, SizeIs(1));
}

TEST_F(Patient, ContinuesAsSoonAsTheStragglerArrives) {
  start();
  give(a_group(1, 0, {0, 1}));
  give(a_group(2, 0, {0, 1}));
  EXPECT_FALSE(*trainer.run_work());
  give(a_group(0, 0, {0, 1}));
  EXPECT_TRUE(*trainer.run_work());
  EXPECT_EQ(ended()[0].ordinal, 0U);
  EXPECT_FALSE(trainer.timer("straggler").has_value());
}

struct Skipping : TrainerStory {
  Skipping() : TrainerStory({.learner = "", .weights = "", .skipped_max = 3}) {}
};

TEST_F(Skipping, ASkippedStepFailsItsGroupsAndMakesNoVersion) {
  start();
  learner.num_to_skip = 1;
  batch(0, 0);
  const auto ends = ended();
  ASSERT_THAT(ends, SizeIs(2));
  EXPECT_EQ(ends[0].end, RolloutEnd::kFailed);
  EXPECT_THAT(ends[0].reason, HasSubstr("not finite"));
  EXPECT_EQ(weights->newest({}), PolicyVersion(0));
  batch(2, 0);
  EXPECT_EQ(weights->newest({}), PolicyVersion(1));
  EXPECT_EQ(ended()[0].step, 1) << "the step counts versions";
}

TEST_F(Skipping, TooManySkippedStepsInARowFailTheNode) {
  start();
  learner.num_to_skip = 3;
  batch(0, 0);
  batch(2, 0);
  give(a_group(4, 0, {0, 1}));
  give(a_group(5, 0, {0, 1}));
  EXPECT_TRUE(trainer.run_work().ok()) << "the groups' ends leave first";
  EXPECT_THAT(ended(), SizeIs(6));
  const auto after = trainer.run_work();
  ASSERT_FALSE(after.ok());
  EXPECT_THAT(after.error().text(), HasSubstr("3 steps in a row"));
}

TEST_F(Skipping, StepsThatAreSkippedNowAndThenFailNothing) {
  start();
  for (uint64_t i = 0; i < 3; ++i) {
    learner.num_to_skip = 2;
    batch(6 * i, static_cast<int64_t>(i));
    batch(6 * i + 2, static_cast<int64_t>(i));
    batch(6 * i + 4, static_cast<int64_t>(i));
    EXPECT_EQ(weights->newest({}), PolicyVersion(static_cast<int64_t>(i) + 1));
  }
  EXPECT_FALSE(trainer.stops_on_error());
}

struct Impatient : TrainerStory {
  Impatient() : TrainerStory({.learner = "", .weights = "", .lost_batches_max = 2}) {}
};

TEST_F(Impatient, ARunThatTrainsOnNothingEnds) {
  start();
  for (uint64_t i = 0; i < 3; ++i) give(a_group(i, 0, {1, 1}));
  EXPECT_FALSE(trainer.stops_on_error());
  give(a_group(3, 0, {1, 1}));
  EXPECT_THAT(trainer.log().back(),
              HasSubstr("4 groups in a row ended without being trained on, 4 of them as filtered: "
                        "zero_advantage: all rewards are equal"));
  EXPECT_THAT(ended(), SizeIs(4));
  EXPECT_TRUE(trainer.stops_on_error());
  EXPECT_TRUE(trainer.drain().ok()) << "what a drain ends must leave";
  const auto after = trainer.run_work();
  ASSERT_FALSE(after.ok()) << "the turn after it says it";
  EXPECT_THAT(after.error().message(), HasSubstr("4 groups in a row"));
  EXPECT_THAT(after.error().notes(), ElementsAre(HasSubstr("rollouts.jsonl")));
}

TEST(LossReasons, NamesTheMostFrequentOfThoseItTellsApart) {
  LossReasons reasons;
  EXPECT_EQ(reasons.most_frequent(), "");
  reasons.add(RolloutEnd::kStale, "3 steps off policy");
  for (int i = 0; i < 2; ++i) reasons.add(RolloutEnd::kFailed, "no room");
  EXPECT_EQ(reasons.most_frequent(), "2 of them as failed: no room");
  for (size_t i = 2; i < LossReasons::kReasonsMax; ++i)
    reasons.add(RolloutEnd::kFailed, std::string(i, 'f'));
  for (int i = 0; i < 3; ++i) reasons.add(RolloutEnd::kFailed, "one too many");
  EXPECT_EQ(reasons.most_frequent(), "2 of them as failed: no room");
  for (const char* each : {"3 of 8 survived", "2 of 8 survived", "0 of 8 survived"})
    reasons.add(RolloutEnd::kStale, each);
  EXPECT_EQ(reasons.most_frequent(), "2 of them as failed: no room");
  reasons.clear();
  for (const char* each : {"3 of 8 survived", "2 of 8 survived", "0 of 8 survived"})
    reasons.add(RolloutEnd::kStale, each);
  EXPECT_EQ(reasons.most_frequent(), "3 of them as stale: 3 of 8 survived");
  reasons.clear();
  reasons.add(RolloutEnd::kStale, "late");
  EXPECT_EQ(reasons.most_frequent(), "1 of them as stale: late");
}

TEST_F(TrainerStory, AStopDuringAStepCancelsItsGroups) {
  start();
  trainer.set_stop_requested(true);
  batch(0, 0);
  const auto ends = ended();
  ASSERT_THAT(ends, SizeIs(2));
  EXPECT_EQ(ends[0].end, RolloutEnd::kCancelled);
  EXPECT_EQ(weights->newest({}), PolicyVersion(0));
}

TEST_F(TrainerStory, PublishesTheMetricsOfAStepOnceItsEndIsKnown) {
  start();
  give(a_group(0, 0, {0, 1}));
  ASSERT_TRUE(trainer.advance(Duration::seconds(2)).ok());
  give(a_group(1, 0, {0.5, 1}));
  EXPECT_TRUE(*trainer.run_work());
  EXPECT_THAT(trainer.metrics(), IsEmpty());
  ASSERT_TRUE(trainer.advance(Duration::seconds(4)).ok());
  ASSERT_TRUE(trainer.run_work().ok());
  ASSERT_THAT(trainer.metrics(), SizeIs(1));
  const auto& metrics = trainer.metrics()[0];
  EXPECT_EQ(metrics.step, 1);
  EXPECT_DOUBLE_EQ(metrics.at("reward/all/mean"), 0.625);
  EXPECT_EQ(metrics.at("reward/all/min"), 0);
  EXPECT_EQ(metrics.at("off_policy/max"), 0);
  EXPECT_EQ(metrics.at("optim/grad_norm"), 0.25);
  EXPECT_DOUBLE_EQ(metrics.at("time/wait_for_batch"), 2);
  EXPECT_DOUBLE_EQ(metrics.at("time/learner"), 4);
  EXPECT_DOUBLE_EQ(metrics.at("time/step"), 6);
  EXPECT_DOUBLE_EQ(metrics.at("perf/train_tokens_per_second"), 25);
  EXPECT_DOUBLE_EQ(metrics.at("perf/decode_tokens_per_second"), 2) << "12 tokens in 6 s";
}

TEST_F(TrainerStory, RewardsOfFilteredGroupsCountInTheMeanOverAll) {
  start();
  give(a_group(0, 0, {1, 1}));
  give(a_group(1, 0, {0, 1}));
  give(a_group(2, 0, {0, 1}));
  EXPECT_TRUE(*trainer.run_work());
  ASSERT_TRUE(trainer.run_work().ok());
  ASSERT_THAT(trainer.metrics(), SizeIs(1));
  EXPECT_DOUBLE_EQ(trainer.metrics()[0].at("reward/all/mean"), 4.0 / 6.0);
  EXPECT_DOUBLE_EQ(trainer.metrics()[0].at("reward/trained/mean"), 0.5);
  EXPECT_EQ(trainer.metrics()[0].at("progress/groups_filtered"), 1);
  batch(3, 1);
  ASSERT_THAT(trainer.metrics(), SizeIs(2));
  EXPECT_DOUBLE_EQ(trainer.metrics()[1].at("reward/all/mean"), 0.5) << "of its own groups";
  EXPECT_EQ(trainer.metrics()[1].at("progress/groups_filtered"), 0);
}

struct Supervised : TrainerStory {
  Supervised() : TrainerStory({}, tenant()) {}
  static Tenant tenant() {
    Tenant tenant = testing::a_tenant(1, 2, 0);
    tenant.objective = "cross_entropy";
    return tenant;
  }
};

TEST_F(Supervised, TrainsOnSingleExamplesThatNeverAge) {
  start();
  for (uint64_t i = 0; i < 4; ++i) {
    auto group = a_group(i, -1, {0});
    group.members[0].logprobs.clear();
    give(group);
  }
  work();
  ASSERT_THAT(learner.batches, SizeIs(2));
  EXPECT_EQ(learner.batches[1].loss, LossKind::kCrossEntropy);
  EXPECT_THAT(learner.batches[1].samples[0].advantages, IsEmpty());
  EXPECT_THAT(learner.batches[1].samples[0].logprobs, IsEmpty());
}

TEST_F(Supervised, HoldsTheEdgeWhenItsPoolIsFull) {
  start();
  for (uint64_t i = 0; i < 4; ++i) give(a_group(i, -1, {0}));
  EXPECT_TRUE(trainer.is_paused("group"));
  EXPECT_TRUE(*trainer.run_work());
  EXPECT_FALSE(trainer.is_paused("group"));
}

/// All epochs are five groups, and a batch has two.
struct SupervisedEpochs : TrainerStory {
  SupervisedEpochs() : TrainerStory({}, tenant()) {}
  static Tenant tenant() {
    Tenant tenant = testing::a_tenant(1, 2, 0);
    tenant.objective = "cross_entropy";
    tenant.max_steps = 2;
    tenant.groups_max = 5;
    return tenant;
  }
  void give_groups(uint64_t first, uint64_t end) {
    for (uint64_t i = first; i < end; ++i) {
      give(a_group(i, -1, {0}));
      work();
    }
  }
};

TEST_F(SupervisedEpochs, EndWithTheLastWholeBatch) {
  start();
  give_groups(0, 3);
  EXPECT_FALSE(trainer.is_finished(TenantSlot(0)));
  give_groups(3, 5);
  EXPECT_THAT(learner.batches, SizeIs(2));
  EXPECT_TRUE(trainer.is_finished(TenantSlot(0)));
}

TEST_F(SupervisedEpochs, EndEarlierIfGroupsThatDidNotTrainLeaveTooFewForABatch) {
  start();
  give_groups(0, 2);
  for (uint64_t i = 2; i < 4; ++i) {
    auto failed = a_group(i, -1, {0});
    failed.members[0].is_failed = true;
    give(failed);
    work();
  }
  EXPECT_FALSE(trainer.is_finished(TenantSlot(0))) << "one group has not come";
  give_groups(4, 5);
  EXPECT_THAT(learner.batches, SizeIs(1));
  EXPECT_TRUE(trainer.is_finished(TenantSlot(0)));
}

TEST_F(SupervisedEpochs, AResumedRunThatHadAllGroupsEndsAtOnce) {
  ResumePoint point;
  point.folder = new_scratch_folder();
  point.step = 1;
  point.version = PolicyVersion(1);
  point.manifest = *parse_json(R"({"consumed": [[0, 4]], "resumes": 0})", "manifest");
  trainer.set_resume_point(TenantSlot(0), point);
  start();
  work();
  EXPECT_THAT(learner.batches, SizeIs(0));
  EXPECT_TRUE(trainer.is_finished(TenantSlot(0)));
}

}  // namespace
}  // namespace primerl
