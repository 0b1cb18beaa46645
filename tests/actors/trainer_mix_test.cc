// Groups of several environments in one batch: filters, advantages, metrics, curricula.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/common/task_mix.h"
#include "tests/actors/trainer_story.h"

namespace primerl {
namespace {

using testing::a_group;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;

/// "a" as the tenant; "b" samples at temperature 0.5, keeps groups of equal rewards and z-scores.
Tenant a_mix_to_train() {
  Tenant tenant = testing::a_tenant();
  auto a = std::make_shared<Tenant>(tenant);
  a->label = "a";
  a->rewards.emplace_back().label = "a/exact";
  auto b = std::make_shared<Tenant>(tenant);
  b->label = "b";
  b->sampling.temperature = 0.5;
  b->filters.zero_advantage = false;
  b->filters.truncated = true;
  b->advantage.kind = "z_score";
  b->rewards.emplace_back().label = "b/length";
  tenant.mix = {a, b};
  return tenant;
}

struct MixedTrainer : testing::TrainerStory {
  explicit MixedTrainer(Tenant tenant = a_mix_to_train()) : TrainerStory({}, std::move(tenant)) {}
  static TrajectoryGroup group_of(uint32_t environment, uint64_t ordinal,
                                  std::vector<double> rewards, uint64_t row = 0) {
    TrajectoryGroup group = a_group(ordinal, 0, std::move(rewards));
    group.source = {.environment = environment, .number = ordinal, .row = row, .position = ordinal};
    return group;
  }
  MetricValues metrics() {
    give(group_of(0, 1000, {0, 1}));
    EXPECT_FALSE(trainer.metrics().empty());
    return trainer.metrics().empty() ? MetricValues() : trainer.metrics().back().values;
  }
};

TEST_F(MixedTrainer, EachGroupHasTheAdvantageAndTheTemperatureOfItsEnvironment) {
  start();
  give(group_of(0, 0, {0, 4}));
  give(group_of(1, 1, {0, 4}));
  work();
  ASSERT_THAT(learner.batches, SizeIs(1));
  const auto& samples = learner.batches[0].samples;
  ASSERT_THAT(samples, SizeIs(4));
  EXPECT_EQ(samples[1].advantages.back(), 2);
  EXPECT_EQ(samples[1].temperature, 1);
  EXPECT_NEAR(samples[3].advantages.back(), std::sqrt(0.5), 1e-4);
  EXPECT_EQ(samples[3].temperature, 0.5F);
}

TEST_F(MixedTrainer, EachGroupIsFilteredAsItsEnvironmentSays) {
  start();
  give(group_of(0, 0, {1, 1}));
  give(group_of(1, 1, {1, 1}));
  auto cut = group_of(1, 2, {0, 1});
  cut.members[0].is_truncated = true;
  give(cut);
  const auto ends = ended();
  ASSERT_THAT(ends, SizeIs(2));
  EXPECT_EQ(ends[0].ordinal, 0U);
  EXPECT_THAT(ends[0].reason, HasSubstr("zero_advantage"));
  EXPECT_EQ(ends[1].ordinal, 2U);
  EXPECT_THAT(ends[1].reason, HasSubstr("filters.truncated"));
}

TEST_F(MixedTrainer, ReportsRewardLengthAndSolvedShareByEnvironment) {
  start();
  give(group_of(0, 7, {1, 1}));  // filtered; counts in the reward
  auto a = group_of(0, 0, {0, 1});
  for (auto& member : a.members) member.scores = {member.reward};
  auto b = group_of(1, 1, {0.5, 3});
  for (auto& member : b.members) member.scores = {0.25};
  give(a);
  give(b);
  work();
  const auto values = metrics();
  EXPECT_THAT(values, Contains(Pair("reward/all/mean", 6.5 / 6)));
  EXPECT_THAT(values, Contains(Pair("reward/a/mean", 0.75)));
  EXPECT_THAT(values, Contains(Pair("reward/b/mean", 1.75)));
  EXPECT_THAT(values, Contains(Pair("reward/b/max", 3)));
  EXPECT_THAT(values, Contains(Pair("seq_len/a/mean", 5)));
  EXPECT_THAT(values, Contains(Pair("solved/a/mean", 0.5)));
  EXPECT_THAT(values, Contains(Pair("solved/b/mean", 0.5)));
  EXPECT_THAT(values, Contains(Pair("batch/a", 0.5)));
  EXPECT_THAT(values, Contains(Pair("reward/a/exact/mean", 0.5)));
  EXPECT_THAT(values, Contains(Pair("reward/b/length/mean", 0.25)));
}

TEST_F(MixedTrainer, RefusesAGroupOfAnEnvironmentThatTheTenantLacks) {
  start();
  const Status given = trainer.give("group", group_of(2, 0, {0, 1}), from);
  ASSERT_FALSE(given.ok());
  EXPECT_THAT(given.error().text(), HasSubstr("environment 2, but tenant 'main' has 2"));
}

Tenant a_mix_with_a_best() {
  Tenant tenant = a_mix_to_train();
  tenant.checkpoint_every = 1;
  tenant.keep_best = 1;
  tenant.best_by = "reward/b/mean";
  return tenant;
}

struct TrainerOfTheBest : MixedTrainer {
  TrainerOfTheBest() : MixedTrainer(a_mix_with_a_best()) {}
};

TEST_F(TrainerOfTheBest, AStepWithoutTheEnvironmentOfTheMetricHasNoScore) {
  start();
  uint64_t ordinal = 0;
  int64_t version = 0;
  for (const uint32_t environment : {0, 1, 0}) {
    for (int i = 0; i < 2; ++i) {
      auto group = group_of(environment, ordinal++, {0, 4});
      group.version = PolicyVersion(version);
      give(std::move(group));
    }
    work();
    ++version;
  }
  const auto& made = trainer.checkpoints();
  ASSERT_THAT(made, SizeIs(3));
  EXPECT_EQ(made[0].manifest.find("score"), nullptr);
  EXPECT_EQ(made[1].manifest.get_double("score").value(), 2);
  EXPECT_EQ(made[2].manifest.find("score"), nullptr);
}

Tenant a_mix_of_batches() {
  Tenant tenant = testing::a_tenant(2, 4);
  for (const char* label : {"a", "b"}) {
    auto own = std::make_shared<Tenant>(tenant);
    own->label = label;
    own->advantage.kind = "batch";
    tenant.mix.push_back(own);
  }
  return tenant;
}

struct BatchTrainer : MixedTrainer {
  BatchTrainer() : MixedTrainer(a_mix_of_batches()) {}
};

/// Rewards of another scale do not change the advantages of an environment.
TEST_F(BatchTrainer, AdvantagesOfABatchCompareRolloutsOfOneEnvironment) {
  start();
  give(group_of(0, 0, {0, 0}));
  give(group_of(1, 1, {100, 100}));
  give(group_of(0, 2, {1, 1}));
  give(group_of(1, 3, {300, 300}));
  work();
  ASSERT_THAT(learner.batches, SizeIs(1));
  const auto& samples = learner.batches[0].samples;
  ASSERT_THAT(samples, SizeIs(8));
  for (size_t i = 0; i < 8; ++i)
    EXPECT_NEAR(samples[i].advantages.back(), (i < 4 ? -1 : 1) * std::sqrt(0.75), 1e-5) << i;
}

Tenant a_mix_with_rows() {
  Tenant tenant = a_mix_to_train();
  auto own = std::make_shared<Tenant>(tenant.in_environment(1));
  own->curriculum.rows = 10;
  own->curriculum.easy_threshold = 1;
  own->curriculum.easy_fraction = 1;
  own->curriculum.hard_threshold = 0;
  own->curriculum.stages = {{0.5, 0.5, 8}, {}};
  tenant.mix[1] = own;
  return tenant;
}

struct TrainerWithACurriculum : MixedTrainer {
  TrainerWithACurriculum() : MixedTrainer(a_mix_with_rows()) {}
};

TEST_F(TrainerWithACurriculum, KeepsThePoolsOfItsRowsForMetricsAndCheckpoints) {
  start();
  give(group_of(1, 0, {1, 1}, 3));
  auto failed = group_of(1, 1, {5, 0}, 4);
  failed.members[0].is_failed = true;
  give(failed);
  give(group_of(0, 2, {0, 1}));
  give(group_of(0, 3, {0, 1}));
  work();
  const auto values = metrics();
  EXPECT_THAT(values, Contains(Pair("curriculum/b/unseen", 8)));
  EXPECT_THAT(values, Contains(Pair("curriculum/b/easy", 1)));
  EXPECT_THAT(values, Contains(Pair("curriculum/b/hard", 1)));
  EXPECT_THAT(values, Contains(Pair("curriculum/b/stage", 0)));
  EXPECT_THAT(values, Not(Contains(Pair("curriculum/a/unseen", ::testing::_))));
  const Json state = trainer.node().checkpoint_state(a_mix_with_rows());
  const Json* const saved = state.find(kCurricula)->find("b");
  ASSERT_NE(saved, nullptr);
  EXPECT_EQ(*saved->get_int("next"), 2);
  EXPECT_EQ(*saved->get_string("rows"), "A3DB");
}

TEST_F(TrainerWithACurriculum, ContinuesFromACheckpointWithTheRowsThatReturned) {
  Tenant tenant = a_mix_with_rows();
  TrainedRows rows;
  rows.add(tenant.in_environment(1).curriculum, group_of(1, 0, {1, 1}, 3));
  rows.add(tenant.in_environment(1).curriculum, group_of(1, 1, {0, 0}, 4));
  ResumePoint point;
  point.version = PolicyVersion(1);
  point.step = 1;
  point.manifest = Json::object()
                       .set("consumed", OrdinalSet().to_json())
                       .set("resumes", int64_t{0})
                       .set(kMixOfCheckpoint, mix_json(tenant))
                       .set(kCurricula, curricula_json({{1, rows}}, tenant));
  trainer.set_resume_point(TenantSlot(0), point);
  start();
  const Json state = trainer.node().checkpoint_state(tenant);
  EXPECT_EQ(*state.find(kCurricula)->find("b")->get_string("rows"), "A4B")
      << "all easy rows returned, no hard one";
}

}  // namespace
}  // namespace primerl
